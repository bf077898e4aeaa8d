"""What evaluations and sweeps ask of an engine, and how to get one: processes of this machine, or Ray."""

import contextlib
import os
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol, TypeVar, get_args

from excite.errors import InputError, unknown

RETRIES = 2  # of a task whose worker died

EngineName = Literal["local", "ray"]
Key = TypeVar("Key")


class Task(Protocol):
    """A function that was submitted; `concurrent.futures.Future` is one."""

    def result(self) -> Any:
        """Its return value, or the exception it raised."""


class Shared(Protocol):
    """A value that every worker needs. It is hashable, so that a worker can cache what it makes of the value."""

    def load(self) -> Any: ...

    def __hash__(self) -> int: ...


class Executor(Protocol):
    """Runs functions in other processes. A task whose worker dies is repeated up to `RETRIES` times."""

    n_workers: float  # infinite where the engine itself decides how many tasks run at a time

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task: ...

    def wait(self, tasks: Collection[Task]) -> Collection[Task]:
        """Block until at least one of them has ended, and return those that have."""

    def share(self, value: object) -> Shared:
        """Send `value` to the workers once instead of with every task."""


@dataclass(frozen=True)
class Shards:
    """Where work runs: in this process, in `workers` processes of this machine, or as tasks of a Ray cluster."""

    workers: int | None = None
    engine: EngineName = "local"
    address: str | None = None

    @property
    def alone(self) -> bool:
        return self.engine == "local" and self.workers in (None, 1)

    def check(self, n_examples: int) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown("engine", self.engine, get_args(EngineName))
        if self.workers is not None and not 1 <= self.workers <= n_examples:
            raise InputError(f"workers={self.workers} does not fit {n_examples} images; pass 1 to {n_examples}.")
        if self.address is not None and self.engine != "ray":
            raise InputError(f'address="{self.address}" needs engine="ray".')


UNSHARED = Shards()


@contextlib.contextmanager
def executor(shards: Shards, *, use_gpus: bool, n_tasks: int | None = None) -> Iterator[Executor]:
    """An engine for as long as the block runs; on exit, tasks that are still running are stopped.

    Local workers are as many as `shards` says (by default one per GPU, or else one per core), but at most `n_tasks`.
    Each has one thread, and one GPU if `use_gpus` and there are any.
    """
    if shards.engine == "ray":
        from excite.execution.on_ray import RayTasks, cluster

        with cluster(shards.address, shards.workers):
            yield RayTasks(shards.workers, use_gpus=use_gpus)
        return
    from excite.execution.processes import Processes

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
    running: dict[Task, Key] = {}

    def ended() -> Iterator[tuple[Key, Any]]:
        for task in engine.wait(running):
            yield running.pop(task), task.result()

    for key, arguments in calls:
        running[engine.submit(function, *arguments)] = key
        if len(running) >= engine.n_workers:
            yield from ended()
    while running:
        yield from ended()


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
