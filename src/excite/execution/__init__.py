"""Run functions in worker processes of this machine or on a Ray cluster, through one interface: `submit` and `wait`.

Each local worker is a `ProcessPoolExecutor` of one process. So a process that dies takes no other task with it, and the
task that it had is known; the task is repeated in a new process.
"""

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar

from excite.errors import ExciteError, InputError, InterruptedRunError
from excite.quantities import check_whole
from excite.registry import check_choice

RETRIES = 2  # of a task whose worker died
SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot differentiate after its parent has

EngineName = Literal["local", "ray"]
Key = TypeVar("Key")


class Shared(Protocol):
    """A value that every worker needs. It is hashable, so that a worker can cache what it makes of the value."""

    def load(self) -> Any: ...

    def __hash__(self) -> int: ...


class Executor(Protocol):
    """Runs functions in other processes. A task whose worker dies is repeated up to `RETRIES` times."""

    n_workers: float  # infinite where the engine itself decides how many tasks run at a time

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a task; its `result()` returns what the function returns or raises what it raises."""

    def wait(self, tasks: Collection[Any]) -> Collection[Any]:
        """Block until at least one of them has ended, and return those that have."""

    def share(self, value: object) -> Shared:
        """Send `value` to the workers once instead of with every task."""


@dataclass(frozen=True)
class Shards:
    """Where work runs: in this process, in `workers` processes of this machine, or as tasks of a Ray cluster."""

    workers: int | None = None
    engine: EngineName = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_choice("engine", EngineName, self.engine)
        if self.workers is not None:
            check_whole("workers", self.workers, least=1)
        if self.address is not None and self.engine != "ray":
            raise InputError(f'address="{self.address}" needs engine="ray".')


UNSHARED = Shards()


@contextlib.contextmanager
def executor(shards: Shards, *, use_gpus: bool, n_tasks: int | None = None) -> Iterator[Executor]:
    """An engine for as long as the block runs; on exit, tasks that are still running are stopped.

    Local workers are as many as `shards` says (by default one per GPU, or else one per core), but at most `n_tasks`.
    Each has one thread, and one GPU if `use_gpus` and there are any. Inside a Ray task that holds a GPU, local workers
    share that GPU, because tasks that need another one could wait forever.
    """
    if shards.engine == "ray":
        from excite.execution.on_ray import RayTasks, cluster, holds_a_gpu

        if not (use_gpus and holds_a_gpu()):
            with cluster(shards.address, shards.workers):
                yield RayTasks(shards.workers, use_gpus=use_gpus)
            return
    gpus = _visible_gpus() if use_gpus else []
    n_workers = shards.workers or len(gpus) or _n_cores()
    processes = Processes(n_workers if n_tasks is None else max(1, min(n_workers, n_tasks)), gpus)
    try:
        yield processes
    finally:
        processes.close()


def as_completed(
    engine: Executor, function: Callable[..., Any], calls: Iterable[tuple[Key, tuple[Any, ...]]]
) -> Iterator[tuple[Key, Any]]:
    """Call `function` with the arguments of each call; yield each key with its result as soon as it is there."""
    running: dict[Any, Key] = {}
    for key, arguments in calls:
        running[engine.submit(function, *arguments)] = key
        if len(running) >= engine.n_workers:
            yield from _ended(engine, running)
    while running:
        yield from _ended(engine, running)


def _ended(engine: Executor, running: dict[Any, Key]) -> Iterator[tuple[Key, Any]]:
    for task in engine.wait(running):
        yield running.pop(task), task.result()


def save(value: object, file: IO[bytes], pickler: Any = pickle) -> None:
    """Write `value` for a worker: torch keeps layouts and shared memory, so tied weights stay tied."""
    import torch

    try:
        torch.save(value, file, pickle_module=pickler)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"The model or an attack cannot be sent to other processes ({error}). Define its class or function at the "
            "top level of a module, or pass workers=1."
        ) from error


def load(file: IO[bytes]) -> Any:
    """Read what `save` wrote in the process that started this one. It may run code, so never read a user's file."""
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"A worker cannot import the class of the model or of an attack ({error}). Put it into a module that can "
            "be imported, or pass workers=1."
        ) from error


def _visible_gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
            f"A worker process died {1 + RETRIES} times at the same task. If it could not start, the traceback above "
            'says why; a script must start its work below `if __name__ == "__main__":`. Without a traceback, memory '
            "probably ran out: use fewer workers or smaller batches."
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
