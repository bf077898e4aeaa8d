"""Batches of one evaluation judged by a Ray cluster: Ray decides where, and starts those again whose worker died."""

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from excite.errors import InputError
from excite.evaluation.batch import Judge, Ruling, Task, device_of
from excite.evaluation.parcel import opened, parcel
from excite.evaluation.shards import RETRIES, Work

SECONDS_TO_ANSWER = 5


class OnRay:
    """As Ray tasks; model, examples and attacks go to the cluster's object store once."""

    def __init__(self, judge: Judge, workers: int | None) -> None:
        import ray

        on_gpu = device_of(judge.model, judge.x).type == "cuda"
        resources = ray.cluster_resources()
        self._capacity = workers or max(1, int(resources.get("GPU" if on_gpu else "CPU", 1)))
        self._parcel = ray.put(parcel(judge, ray.cloudpickle.CloudPickler))
        self._device = "cuda" if on_gpu else "cpu"
        self._judge = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_retries=RETRIES)(_judge)

    def work_off(self, work: Work) -> None:
        import ray

        busy: dict[Any, Task] = {}
        while True:
            while len(busy) < self._capacity and (task := work.next()) is not None:
                busy[self._judge.remote(self._parcel, task, self._device)] = task
            if not busy:
                return
            (promise,), _ = ray.wait(list(busy), num_returns=1)
            work.take(busy.pop(promise), ray.get(promise))


def _judge(contents: bytes, task: Task, device: str) -> Ruling:
    torch.set_num_threads(1)
    return opened(contents, device)(task)


@contextlib.contextmanager
def cluster(address: str | None, cpus: int | None, **options: Any) -> Iterator[None]:
    """Connected to the cluster at `address` ("auto" is the one this machine is in), unless one is connected already.

    Without an address a Ray of our own is started with `cpus` and `options`, its home in a temporary folder.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError("The engine ray needs Ray: pip install 'excite[ray]', or choose the engine local.") from error
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with contextlib.ExitStack() as stack:
        if address is None:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=home, **quiet, **options)
        else:
            try:
                _knock(address)
                ray.init(address=address, **quiet)
            except (OSError, ValueError, RuntimeError) as error:
                raise InputError(
                    f'There is no Ray cluster at "{address}" ({error}). Start one with `ray start --head`, or leave '
                    "the address out."
                ) from error
        stack.callback(ray.shutdown)
        yield


def _knock(address: str) -> None:
    """Whether anybody listens at host:port; Ray itself would keep trying for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
