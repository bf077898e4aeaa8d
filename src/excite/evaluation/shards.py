"""Batches of one evaluation judged in several processes of this machine; whose worker dies is judged again."""

import contextlib
import copy
import multiprocessing
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch

from excite.errors import ExciteError, InputError, unknown
from excite.evaluation.batch import Judge, Task, Verdict, device_of

RETRIES = 2

EngineName = Literal["local", "ray"]


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


class Engine(Protocol):
    """Takes up to `capacity` tasks at a time and gives back whichever is done first."""

    @property
    def capacity(self) -> int: ...

    def submit(self, task: Task) -> None: ...

    def collect(self) -> tuple[Task, Verdict]: ...


class Here:
    """In this process."""

    capacity = 1

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def submit(self, task: Task) -> None:
        self._task = task

    def collect(self) -> tuple[Task, Verdict]:
        return self._task, self._judge(self._task)


class Processes:
    """In `workers` processes of one thread each, or of one GPU each where the model lies on one.

    They are started when they are needed, import torch anew, and get model, examples and attacks once.
    """

    def __init__(self, judge: Judge, workers: int) -> None:
        self.capacity = workers
        self._parcel = parcel(judge, pickle.dumps)
        device = device_of(judge.model, judge.x)
        self._devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device.type == "cuda" else ["cpu"]
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Task]] = {}
        self._deaths: Counter[Task] = Counter()
        self._started = 0

    def submit(self, task: Task) -> None:
        new = not self._idle
        worker = self._start() if new else self._idle.pop()
        self._busy[worker.connection] = worker, task
        if new:  # reads only when it has imported torch, and a pipe holds little: the next one starts meanwhile
            threading.Thread(target=self._introduce, args=(worker, task), daemon=True).start()
        else:
            _send(worker, task)

    def collect(self) -> tuple[Task, Verdict]:
        while True:
            ready = set(wait(list(self._busy)))
            for worker, task in [at_work for connection, at_work in self._busy.items() if connection in ready]:
                del self._busy[worker.connection]
                try:
                    answer = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    self._bury(worker, task)
                    continue
                self._idle.append(worker)
                if isinstance(answer, BaseException):
                    raise answer
                return task, answer

    def close(self) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            worker.process.terminate()
            worker.process.join()
            worker.connection.close()

    def _start(self) -> "_Worker":
        worker = _Worker(self._devices[self._started % len(self._devices)])
        self._started += 1
        return worker

    def _introduce(self, worker: "_Worker", task: Task) -> None:
        with contextlib.suppress(OSError, TypeError):  # the latter where the connection is closed in the middle of it
            worker.connection.send_bytes(self._parcel)
        _send(worker, task)

    def _bury(self, worker: "_Worker", task: Task) -> None:
        worker.process.join()
        worker.connection.close()
        self._deaths[task] += 1
        if self._deaths[task] > RETRIES:
            raise ExciteError(
                f"The process at batch {task.number} of {task.attack} ended {RETRIES + 1} times, the last time with "
                f"code {worker.process.exitcode}. If memory was short, pass fewer workers or a smaller batch_size. In "
                'a script, call evaluate below `if __name__ == "__main__":`, since workers import the script.'
            )
        self.submit(task)


class _Worker:
    def __init__(self, device: str) -> None:
        spawn = multiprocessing.get_context("spawn")  # a forked process cannot differentiate after its parent has
        self.connection, theirs = spawn.Pipe()
        self.process: BaseProcess = spawn.Process(target=_work, args=(theirs, device), daemon=True)
        self.process.start()
        theirs.close()


def _send(worker: _Worker, task: Task) -> None:
    with contextlib.suppress(OSError):  # it died meanwhile; `collect` will hear of it
        worker.connection.send(task)


def _work(connection: Connection, device: str) -> None:
    """What a worker does until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it through its parent only
    torch.set_num_threads(1)
    sys.path.append(str(Path.cwd()))  # where a stranger's own modules may lie
    with contextlib.suppress(EOFError):
        contents, judge = connection.recv_bytes(), None
        while True:
            task = connection.recv()
            try:
                judge = judge or opened(contents, device)
                answer: Verdict | Exception = judge(task)
            except Exception as error:  # whatever it is, the process that asked raises it again
                error.add_note(traceback.format_exc())
                answer = error
            connection.send(answer)


def parcel(judge: Judge, dumps: Callable[[object], bytes]) -> bytes:
    """All that a worker needs, on its way: the model as it is, in eval mode."""
    model = judge.model
    if device_of(model, judge.x).type != "cpu":
        model = copy.deepcopy(model).cpu()
    try:
        return dumps((model, judge.x.cpu(), judge.y.cpu(), judge.attacks, judge.seed, judge.fast))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"The model or an attack cannot be sent to other processes ({error}). Define its class or function at the "
            "top of a module, or pass workers=1."
        ) from error


def opened(contents: bytes, device: str) -> Judge:
    try:
        model, x, y, attacks, seed, fast = pickle.loads(contents)  # noqa: S301 - packed by the process that asks
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"A worker does not find the class of the model or of an attack ({error}). Put it into a module that can "
            "be imported, or pass workers=1."
        ) from error
    return Judge(model.to(device), x, y, attacks, seed=seed, fast=fast)


@contextlib.contextmanager
def engine_for(judge: Judge, shards: Shards) -> Iterator[Engine]:
    """Who judges: this process, several of this machine, or a Ray cluster."""
    if shards.engine == "ray":
        from excite.evaluation.shards_on_ray import OnRay, cluster

        with cluster(shards.address, shards.workers):
            yield OnRay(judge, shards.workers)
    elif shards.workers is None or shards.workers == 1:
        yield Here(judge)
    else:
        processes = Processes(judge, shards.workers)
        try:
            yield processes
        finally:
            processes.close()
