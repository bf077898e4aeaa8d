"""Run tasks on a Ray cluster; Ray decides where, and repeats a task whose worker died."""

import contextlib
import io
import logging
import math
import os
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from excite.errors import ExciteError, InputError, InterruptedRunError
from excite.execution import RETRIES, load, save

CONNECT_SECONDS = 5


class RayTasks:
    """An `Executor` on the connected cluster."""

    def __init__(self, n_workers: int | None, *, use_gpus: bool) -> None:
        import ray

        self.n_workers = n_workers or math.inf
        n_gpus = int(use_gpus and bool(ray.cluster_resources().get("GPU")))
        options: dict[str, Any] = {"max_retries": RETRIES, "retry_exceptions": [InterruptedRunError]}
        self._call = ray.remote(num_cpus=1, num_gpus=n_gpus, **options)(_call)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "RayTask":
        return RayTask(self._call.remote(function, *arguments))

    def wait(self, tasks: Collection[Any]) -> Collection[Any]:
        import ray

        by_reference = {task.reference: task for task in tasks}
        done, _ = ray.wait(list(by_reference), num_returns=1)  # inside a task, this frees its CPU for others
        return [by_reference[reference] for reference in done]

    def share(self, value: object) -> "InObjectStore":
        import ray

        file = io.BytesIO()
        save(value, file, ray.cloudpickle)
        return InObjectStore(ray.put(file.getvalue()))


@dataclass(frozen=True)
class RayTask:
    reference: Any

    def result(self) -> Any:
        import ray

        try:
            return ray.get(self.reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise ExciteError(f"Ray gave up on a task: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class InObjectStore:
    reference: Any

    def load(self) -> Any:
        import ray

        return load(io.BytesIO(ray.get(self.reference)))


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return function(*arguments)


def holds_a_gpu() -> bool:
    """Whether this process is a Ray task to which Ray gave a GPU."""
    with contextlib.suppress(ImportError):
        import ray

        if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
            return bool(ray.get_gpu_ids())
    return False


@contextlib.contextmanager
def cluster(address: str | None, n_cpus: int | None) -> Iterator[None]:
    """Connect to the cluster at `address` ("auto" finds the one this machine is part of), unless one is connected.

    Without an address, start Ray on this machine with `n_cpus`, in a temporary folder.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError("The engine ray needs Ray: pip install 'excite[ray]', or use the engine local.") from error
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with contextlib.ExitStack() as stack:
        if address is None:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, _temp_dir=home, **quiet)
        else:
            try:
                _check_listening(address)
                ray.init(address=address, **quiet)
            except (OSError, ValueError, RuntimeError) as error:
                raise InputError(
                    f'There is no Ray cluster at "{address}" ({error}). Start one with `ray start --head`, or leave '
                    "the address out."
                ) from error
        stack.callback(ray.shutdown)
        yield


def _check_listening(address: str) -> None:
    """Raise OSError if nothing listens at host:port; Ray itself would keep trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
