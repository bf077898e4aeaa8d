"""`excite` in processes of its own, which start at once: forked from one that has everything imported."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import nn

from excite import models
from excite.cli import main

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        *(__name__, "excite.report.page", "excite.runs.procedure", "torch._dynamo", "scipy.stats", "jinja2"),
        *("PIL.Image", "matplotlib.figure", "matplotlib.backends.backend_svg"),
    ]
)
LONGEST = 300.0  # seconds, after which a process hangs


class Dropping(nn.Sequential):
    """A linear classifier that drops half of its pixels."""

    def __init__(self, *, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        pixels = input_shape[0] * input_shape[1] * input_shape[2]
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(pixels, num_classes))


def _excite(arguments: Sequence[str], said: Connection, largest_file: int | None) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # of a pipe
    said.close()
    torch.set_num_threads(1)
    models.MODELS["dropping"] = Dropping
    if largest_file is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    main(arguments)


class Excite:
    """The command `excite` with these arguments, at work; no file of it can grow beyond `largest_file` bytes."""

    def __init__(self, *arguments: str | Path, largest_file: int | None = None) -> None:
        self._hears, said = FORKED.Pipe(duplex=False)
        self._process = FORKED.Process(target=_excite, args=([*map(str, arguments)], said, largest_file))
        self._process.start()
        said.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; whether there was still somebody to get it."""
        if not self.alive or not self._process.pid:
            return False
        os.kill(self._process.pid, number)
        return True

    def end(self) -> tuple[int, str]:
        """Its exit code, negative for the signal that killed it, and all that it said."""
        said = b""
        while part := os.read(self._hears.fileno(), 65536):
            said += part
        self._process.join(LONGEST)
        assert self._process.exitcode is not None, "it hangs"
        return self._process.exitcode, said.decode()
