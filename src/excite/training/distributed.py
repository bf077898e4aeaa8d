"""Several processes train one model: each works on its share of every batch, and all take the same step."""

import contextlib
import gc
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # see launched
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from excite.errors import ExciteError
from excite.randomness import derive_seed, device_of, seed_all

T = TypeVar("T")
Loss = Callable[[], Tensor]

PATIENCE = timedelta(days=1)  # the others wait while the first one estimates L or attacks; a dead one is noticed anyway

logger = logging.getLogger(__name__)


class Step(nn.Module):
    """What DistributedDataParallel wraps: any loss of the model is one forward pass, whatever it does inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, loss: Loss) -> Tensor:
        return loss()


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, seen from one of them. Without arguments it is alone and sends nothing.

    Numbers that steer the run go between hosts (gloo), tensors of the model between its devices (nccl on CUDA).
    """

    rank: int = 0
    world: int = 1
    synchronized: DistributedDataParallel | None = None
    itself: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """The one that writes and speaks."""
        return self.rank == 0

    def training(self, model: nn.Module) -> "Ranks":
        """The same processes, about to train `model`: everybody gets the first one's weights and draws of its own."""
        if self.world == 1:
            return self
        itself = _synchronize_batch_norm(model, self.first)
        synchronized = DistributedDataParallel(Step(model))
        # After its first backward pass torch groups the gradients anew, and sums of more than two numbers depend on the
        # grouping. With that pass made here, a resumed run adds up as the uninterrupted one does.
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        synchronized(lambda: torch.stack([parameter.sum() for parameter in trainable]).sum() * 0).backward()
        model.zero_grad()
        if not self.first:
            seed_all(derive_seed(torch.initial_seed(), self.rank), device_of(model))
        return replace(self, synchronized=synchronized, itself=itself)

    def share(self, loss: Loss, examples: int) -> Loss:
        """`loss`, a mean over this process's `examples`, weighted so that the mean over processes is the batch's."""
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
        """`loss()`; its backward pass leaves the mean gradient over processes in `.grad`."""
        if self.synchronized is None:
            return loss()
        value: Tensor = self.synchronized(loss)
        return value

    def average(self, tensor: Tensor) -> Tensor:
        """The mean of everybody's tensor."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world

    def agreed(self, signal_number: int | None) -> int | None:
        """The signal to stop for, if anybody got one: all stop at the same step."""
        if self.world == 1:
            return signal_number
        largest = torch.tensor(signal_number or 0)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest) or None

    def gather(self, value: T) -> list[T]:
        """Everybody's value, in the order of ranks. Nobody goes on before all have come here."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def from_first(self, compute: Callable[[], T]) -> T:
        """What the first process computes, while the others wait; where it fails, all do."""
        if self.world == 1:
            return compute()
        if self.first:
            try:
                with self.alone():
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

    def together(self, decide: Callable[[Callable[[], None]], object], work: Callable[[], None]) -> None:
        """Whether `decide(work)` calls `work` or not is up to the first process: all of them do it, or none."""
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

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Meanwhile batch-norm does not wait for the other processes."""
        layers = [] if self.itself is None or self.synchronized is None else _synchronized_layers(self.synchronized)
        try:
            for layer in layers:
                layer.process_group = self.itself
            yield
        finally:
            for layer in layers:
                layer.process_group = None


ALONE = Ranks()


@contextlib.contextmanager
def launched() -> Iterator[Ranks]:
    """The processes that torchrun started this one with; without torchrun, this one alone.

    Each uses the accelerator of its number on its machine, where there is one.

    At the end the group's threads must end, too: one that lets go of a tensor while Python ends aborts it. They
    live as long as the group, and torch.distributed.nn.functional keeps a group that there is when it is imported (as
    DistributedDataParallel does) as a default argument, for good. So it is imported before.
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
    """The first process's message, in every process."""
    messages = [message]
    dist.broadcast_object_list(messages)
    return messages[0]


def _synchronize_batch_norm(model: nn.Module, first: bool) -> dist.ProcessGroup | None:
    """Let batch-norm see the whole batch where torch can (on CUDA); return the group of this process alone, if so."""
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return None
    device = next(model.parameters()).device
    if device.type != "cuda":
        if first:
            logger.info(
                "Batch-norm statistics are per process on %s: each normalises its own share of a batch, "
                "and the first one's running statistics are saved.",
                device.type,
            )
        return None
    nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    itself: dist.ProcessGroup = dist.new_subgroups(group_size=1)[0]  # type: ignore[no-untyped-call]
    return itself


def _synchronized_layers(module: nn.Module) -> list[nn.SyncBatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, nn.SyncBatchNorm)]
