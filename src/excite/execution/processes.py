"""Run tasks in worker processes of this machine; a task whose process dies is repeated in a new one.

Each worker is a `ProcessPoolExecutor` of one process. So a process that dies takes no other task with it, and the task
that it had is known.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from excite.errors import ExciteError, InterruptedRunError
from excite.execution.engine import RETRIES, load, save

SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot differentiate after its parent has


class Processes:
    """An `Executor` of worker processes; a thread waits for each of them."""

    def __init__(self, n_workers: int, gpus: Sequence[str] = ()) -> None:
        self.n_workers: float = n_workers
        self._workers = [_Worker(gpus[number % len(gpus)] if gpus else None) for number in range(n_workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(n_workers)
        self._folder = tempfile.TemporaryDirectory(prefix="excite-")
        self._closing, self._lock = False, threading.Lock()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._threads.submit(self._run, function, arguments)

    def wait(self, tasks: Collection[Any]) -> Collection[Any]:
        return wait(tasks, return_when=FIRST_COMPLETED).done

    def share(self, value: object) -> "InFile":
        path = Path(self._folder.name) / str(len(list(Path(self._folder.name).iterdir())))
        with path.open("wb") as file:
            save(value, file)
        return InFile(path)

    def close(self) -> None:
        """Stop the workers. One that is training saves a checkpoint first."""
        with self._lock:
            self._closing = True
            for worker in self._workers:
                worker.stop()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.pool.shutdown()
        self._folder.cleanup()

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        worker = self._idle.get()
        try:
            for _ in range(1 + RETRIES):
                try:
                    return worker.pool.submit(_call, function, arguments).result()
                except BrokenProcessPool:
                    self._restart(worker)
        finally:
            self._idle.put(worker)
        raise ExciteError(
            f"A worker process died {1 + RETRIES} times at the same task. If it failed to start, its error output says "
            'why; a script must call below `if __name__ == "__main__":`. If there is no error output, memory probably '
            "ran out: use fewer workers or smaller batches."
        )

    def _restart(self, worker: "_Worker") -> None:
        with self._lock:
            if self._closing:
                raise ExciteError("The workers were stopped.")
            worker.stop()
            worker.start()


class _Worker:
    """One process, which ends when its lifeline is closed: by `stop`, or because this process died."""

    def __init__(self, gpu: str | None) -> None:
        self._gpu = gpu
        self.start()

    def start(self) -> None:
        theirs, self._lifeline = SPAWN.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(1, SPAWN, initializer=_prepare, initargs=(theirs, self._gpu))
        with contextlib.suppress(BrokenProcessPool):
            self.pool.submit(os.getpid)  # starts the process now, so that it imports torch while we prepare its work

    def stop(self) -> None:
        self._lifeline.close()


@dataclass(frozen=True)
class InFile:
    """A shared value, in a temporary file of the process that started the workers."""

    path: Path

    def load(self) -> Any:
        with self.path.open("rb") as file:
            return load(file)


def _prepare(lifeline: Connection, gpu: str | None) -> None:
    """Run once in every worker."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the parent only, which then stops its workers
    os.environ["OMP_NUM_THREADS"] = "1"
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    sys.path.append(str(Path.cwd()))  # a user's own modules may be there
    import torch

    torch.set_num_threads(1)


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()  # nothing is ever sent
    os.kill(os.getpid(), signal.SIGTERM)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except InterruptedRunError:  # a signal ended a training, which saved a checkpoint: the same as a process that died
        os._exit(1)
