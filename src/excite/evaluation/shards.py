"""Batches of one evaluation judged in several processes of this machine; whose worker dies is judged again."""

import contextlib
import itertools
import multiprocessing
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch

from excite.errors import ExciteError, InputError, unknown
from excite.evaluation.batch import Judge, Ruling, Task
from excite.evaluation.parcel import opened, parcel
from excite.registry import with_named_options

RETRIES = 2

EngineName = Literal["local", "ray"]


@with_named_options
@dataclass(frozen=True)
class Shards:
    """Who shares an evaluation: so many processes here, or a Ray cluster; alone by default."""

    workers: int | None = None
    engine: EngineName = "local"
    address: str | None = None

    def check(self, examples: int) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown("engine", self.engine, get_args(EngineName))
        if self.workers is not None and not 1 <= self.workers <= examples:
            raise InputError(
                f"workers={self.workers} for {examples} images: pass 1 to {examples}, each judges at least one."
            )
        if self.address is not None and self.engine != "ray":
            raise InputError(f'address="{self.address}" means nothing to the engine local; pass engine="ray".')


UNSHARED = Shards()


class Work(Protocol):
    """What remains of an evaluation."""

    def next(self) -> Task | None:
        """A batch that can be judged now; none also where the next ones wait for those being judged."""

    def take(self, task: Task, verdict: Ruling) -> None: ...


class Engine(Protocol):
    def work_off(self, work: Work) -> None:
        """Judge all of it."""


class Here:
    """In this process."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def work_off(self, work: Work) -> None:
        while (task := work.next()) is not None:
            work.take(task, self._judge(task))


class Processes:
    """In this process and in those of a crew, which get model, examples and attacks once, with their first batch.

    At each pass of its own batch through the model, this process looks whether another one waits for the next batch. A
    batch whose process died goes to the one that replaces it, never to this one.
    """

    def __init__(self, judge: Judge, crew: "Crew") -> None:
        self._judge, self._crew = judge, crew
        self._parcel = parcel(judge)
        self._idle = list(crew.workers)
        self._busy: dict[Connection, tuple[_Worker, Task]] = {}
        self._deaths: Counter[Task] = Counter()

    def work_off(self, work: Work) -> None:
        def look(*_: object) -> None:
            self._serve(work, timeout=0)

        with one_thread(), self._judge.attacked.register_forward_pre_hook(look):
            while True:
                self._serve(work, timeout=0)
                if (task := work.next()) is not None:
                    work.take(task, self._judge(task))
                elif self._busy:
                    self._serve(work, timeout=None)
                else:
                    return

    def _serve(self, work: Work, timeout: float | None) -> None:
        """Take what is done and give out what can be, waiting for the first answer as long as `timeout`."""
        ready = set(wait(list(self._busy), timeout))
        for worker, task in [at_work for connection, at_work in self._busy.items() if connection in ready]:
            del self._busy[worker.connection]
            try:
                answer = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                self._replace(worker, task)
                continue
            self._idle.append(worker)
            if isinstance(answer, BaseException):
                raise answer
            work.take(task, answer)
        while self._idle and (next_task := work.next()) is not None:
            self._give(self._idle.pop(), next_task)

    def _give(self, worker: "_Worker", task: Task) -> None:
        self._busy[worker.connection] = worker, task
        if worker.introduced:
            _send(worker, task)
        else:  # it reads only when it has imported torch, and a pipe holds little
            worker.introduced = True
            threading.Thread(target=self._introduce, args=(worker, task), daemon=True).start()

    def _introduce(self, worker: "_Worker", task: Task) -> None:
        with contextlib.suppress(OSError, TypeError):  # the latter where the connection is closed in the middle of it
            worker.connection.send_bytes(self._parcel)
        _send(worker, task)

    def _replace(self, worker: "_Worker", task: Task) -> None:
        code = self._crew.bury(worker)
        self._deaths[task] += 1
        if self._deaths[task] > RETRIES:
            raise ExciteError(
                f"The process at batch {task.number} of {task.attack} ended {RETRIES + 1} times, the last time with "
                f"code {code}. If memory was short, pass fewer workers or a smaller batch_size. In "
                'a script, call evaluate below `if __name__ == "__main__":`, since workers import the script.'
            )
        self._give(self._crew.start(), task)


class Crew:
    """Processes that import torch while their parent still prepares what they will get."""

    def __init__(self, size: int, device: torch.device) -> None:
        gpus = torch.cuda.device_count() if device.type == "cuda" else 0
        others = [f"cuda:{((device.index or 0) + 1 + i) % gpus}" for i in range(gpus)]
        self._devices = itertools.cycle(others or ["cpu"])
        self.workers: list[_Worker] = []
        for _ in range(size):
            self.start()

    def start(self) -> "_Worker":
        self.workers.append(_Worker(next(self._devices)))
        return self.workers[-1]

    def bury(self, worker: "_Worker") -> int | None:
        """What its process ended with."""
        self.workers.remove(worker)
        worker.process.join()
        worker.connection.close()
        return worker.process.exitcode

    def dismiss(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in list(self.workers):
            self.bury(worker)


class _Worker:
    introduced = False

    def __init__(self, device: str) -> None:
        spawn = multiprocessing.get_context("spawn")  # a forked process cannot differentiate after its parent has
        self.connection, theirs = spawn.Pipe()
        self.process: BaseProcess = spawn.Process(target=_work, args=(theirs, device), daemon=True)
        self.process.start()
        theirs.close()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For torch, inside; a core for each process is worth more than several for one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _send(worker: _Worker, task: Task) -> None:
    with contextlib.suppress(OSError):  # it died meanwhile; `_serve` will hear of it
        worker.connection.send(task)


def _work(connection: Connection, device: str) -> None:
    """What a worker does until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it through its parent only
    torch.set_num_threads(1)
    sys.path.append(str(Path.cwd()))  # where a stranger's own modules may lie
    with contextlib.suppress(EOFError, ConnectionError):  # whoever asked was killed
        contents, judge = connection.recv_bytes(), None
        while True:
            task = connection.recv()
            try:
                judge = judge or opened(contents, device)
                answer: Ruling | Exception = judge(task)
            except Exception as error:  # whatever it is, the process that asked raises it again
                error.add_note(traceback.format_exc())
                answer = error
            connection.send(answer)


@contextlib.contextmanager
def engines(shards: Shards, device: torch.device, *, batches: int) -> Iterator[Callable[[Judge], Engine]]:
    """Who will judge at most `batches` at a time: this process, several of this machine, or a Ray cluster."""
    if shards.engine == "ray":
        from excite.evaluation.shards_on_ray import OnRay, cluster

        with cluster(shards.address, shards.workers):
            yield partial(OnRay, workers=shards.workers)
    elif shards.workers is None or shards.workers == 1:
        yield Here
    else:
        crew = Crew(min(shards.workers, batches) - 1, device)
        try:
            yield partial(Processes, crew=crew)
        finally:
            crew.dismiss()
