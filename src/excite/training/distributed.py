"""Several processes train one model: each computes a share of every batch, and all take the same step."""

import contextlib
import gc
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # see `launched`
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from excite.errors import ExciteError
from excite.randomness import derive_seed, device_of, seed_all

T = TypeVar("T")
Loss = Callable[[], Tensor]

PATIENCE = timedelta(days=1)  # the others wait while the first process estimates L or attacks


class Step(nn.Module):
    """The module that DistributedDataParallel wraps: its forward pass computes any loss of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, loss: Loss) -> Tensor:
        return loss()


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, seen from one of them. By default, one process alone.

    Control messages use gloo, tensors of the model the backend of its device (nccl on CUDA).
    """

    rank: int = 0
    world: int = 1
    synchronized: DistributedDataParallel | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def training(self, model: nn.Module) -> "Ranks":
        """Prepare to train `model`: all processes get the weights of the first, and each its own random numbers."""
        if self.world == 1:
            return self
        synchronized = DistributedDataParallel(Step(model))
        # After its first backward pass torch regroups the gradients, and sums of more than two numbers depend on the
        # grouping. With that pass made here, a resumed run computes the same sums as an uninterrupted one.
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        synchronized(lambda: torch.stack([parameter.sum() for parameter in trainable]).sum() * 0).backward()
        model.zero_grad()
        if not self.first:
            seed_all(derive_seed(torch.initial_seed(), self.rank), device_of(model))
        return replace(self, synchronized=synchronized)

    def share(self, loss: Loss, examples: int) -> Loss:
        """Weight `loss`, a mean over this process's `examples`, so that its mean over processes is the batch's."""
        if self.world == 1:
            return loss
        total = torch.tensor(examples)
        counting = dist.all_reduce(total, async_op=True)  # while the loss is being computed

        def weighted() -> Tensor:
            value = loss()
            counting.wait()
            return value * (examples * self.world / int(total))

        return weighted

    def forward(self, loss: Loss) -> Tensor:
        """Compute `loss()`; its backward pass leaves the mean gradient over processes in `.grad`."""
        if self.synchronized is None:
            return loss()
        return self.synchronized(loss)  # type: ignore[no-any-return]

    def average(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor over processes."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world

    def agreed(self, signal_number: int | None = None) -> int | None:
        """Return the stop signal that any process received, so that all stop at the same step."""
        if self.world == 1:
            return signal_number
        largest = torch.tensor(signal_number or 0)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest) or None

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes in the order of ranks; wait until all have called this."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def from_first(self, compute: Callable[[], T]) -> T:
        """Return what the first process computes while the others wait. If it fails, all fail."""
        if self.world == 1:
            return compute()
        if self.first:
            try:
                value = compute()
            except Exception as error:
                _first_says((None, str(error)))
                raise
            _first_says((value, None))
            return value
        value, problem = _first_says()
        if problem is not None:
            raise ExciteError(f"The first process failed: {problem}")
        return value

    def each(self, compute: Callable[[], T]) -> T:
        """Return what every process computes itself, after the first one has done so, because that writes files."""
        if self.world == 1:
            return compute()
        computed: list[T] = []
        self.from_first(lambda: computed.append(compute()))
        return computed[0] if computed else compute()

    def together(self, decide: Callable[[Callable[[], None]], object], work: Callable[[], None]) -> None:
        """Call `decide(work)` in the first process; if it calls `work`, the other processes call `work` too."""
        if self.world == 1:
            decide(work)
        elif self.first:
            begun = False

            def lead() -> None:
                nonlocal begun
                begun = True
                _first_says(True)
                work()

            decide(lead)
            if not begun:
                _first_says(False)
        elif _first_says():
            work()


ALONE = Ranks()


@contextlib.contextmanager
def launched() -> Iterator[Ranks]:
    """Yield the processes that torchrun started; without torchrun, this process alone.

    Each process uses the accelerator with its local rank, if there is one. The process group must be released before
    Python ends, or its threads may abort the process. torch.distributed.nn.functional keeps any group that exists when
    it is imported alive as a default argument, so this module imports it first.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        yield ALONE
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.accelerator.is_available() and local_rank < torch.accelerator.device_count():
        torch.accelerator.set_device_index(local_rank)
    dist.init_process_group(timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they refer to DistributedDataParallel, which refers to the group
        raise
    finally:
        gc.collect()  # DistributedDataParallel is part of a cycle
        dist.destroy_process_group()


def _first_says(message: Any = None) -> Any:
    """Send the message of the first process to all; return it."""
    messages = [message]
    dist.broadcast_object_list(messages)
    return messages[0]
