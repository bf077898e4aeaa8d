"""Callbacks for Lightning: `PoECallback` finds L before the training, `OnlineRateCallback` during it."""

import contextlib
import copy
import dataclasses
import logging
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.integrations import scalars
from excite.integrations.extras import extra
from excite.lipschitz import LipschitzEstimate, OnlineRate
from excite.quantities import check_positive
from excite.registry import with_named_options
from excite.rescaling import check_reliable, first_rate, rescale_scheduler, scale_rates
from excite.trace import Recorder, Trace

with extra("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
    from lightning.pytorch.utilities import CombinedLoader, GradClipAlgorithmType
    from torchmetrics import Metric, MetricCollection

__all__ = ["OnlineRateCallback", "PoECallback"]

logger = logging.getLogger(__name__)

OF_EVERY_MODULE = vars(nn.Module()).keys()


@with_named_options
class PoECallback(Callback):
    """Start training at `multiple`/L: η¹ = `multiple`/L, ηᵏ = η¹ · γᵏ/γ¹ with your scheduler's shape γ.

    Before the first step L is found by `excite.find_learning_rate`, with your optimizer, your `training_step` and your
    training data; model, metrics, data order and random state are then as before. The rates of all parameter groups are
    multiplied by one factor, schedulers are rescaled (see `excite.rescale_scheduler`), and an attribute `lr` or
    `learning_rate` of the module, or of its hparams, is set. During training a `Recorder` watches; L, acuteness, the
    share of certified steps and local slopes go to every logger. A run that is resumed from a checkpoint keeps its L.

    Args:
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent one.
        update_attr: set the module's `lr` or `learning_rate`.
        attr_name: the attribute's name, where it is another one.
        record: watch the training; costs a forward and a backward pass at `slopes_per_epoch` steps of an epoch.
        slopes_per_epoch: how many local slopes to measure; none where gradients are clipped or accumulated.
        find: options of `find_learning_rate`, for instance {"budget": 1000, "weights": "present"}.
        allow_unidentified: train at L even if it is not identified.

    Attributes:
        estimate: L, once it is found.
        recorder: with the `Trace` of the training in `recorder.trace`.

    ```
    trainer = Trainer(callbacks=[PoECallback()])
    trainer.fit(module, loader)
    ```
    """

    def __init__(
        self,
        multiple: float = 1.0,
        *,
        update_attr: bool = True,
        attr_name: str = "",
        record: bool = True,
        slopes_per_epoch: int = 8,
        find: dict[str, Any] | None = None,
        allow_unidentified: bool = False,
    ) -> None:
        self.multiple, self.update_attr, self.attr_name = multiple, update_attr, attr_name
        self.allow_unidentified = allow_unidentified
        self.record, self.slopes_per_epoch, self.find = record, slopes_per_epoch, find or {}
        self.estimate: LipschitzEstimate | None = None
        self.recorder: Recorder | None = None

    @property
    def trace(self) -> Trace | None:
        return self.recorder.trace if self.recorder else None

    def setup(self, _trainer: Trainer, _pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.estimate = self.recorder = None  # of an earlier fit; a checkpoint is loaded after this

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = _only_optimizer("PoECallback", trainer, pl_module)
        if self.estimate is None:
            for config in trainer.lr_scheduler_configs:
                first_rate(config.scheduler)  # refuses a warm-up before the time is spent
            self.estimate = self._found(trainer, pl_module, optimizer)
            self._set_rates(trainer, pl_module, optimizer)
            logger.info("%s", self.estimate)
        _log(trainer, scalars.of_estimate(self.estimate))
        if self.record and trainer.world_size == 1:
            as_computed = trainer.accumulate_grad_batches == 1 and not trainer.gradient_clip_val
            self.recorder = Recorder(pl_module, optimizer, slopes_per_epoch=self.slopes_per_epoch if as_computed else 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.recorder:
            self.recorder.after_step(lambda: _loss(trainer, pl_module, batch, batch_idx))

    def on_train_epoch_end(self, trainer: Trainer, _pl_module: LightningModule) -> None:
        if self.recorder:
            self.recorder.record()
            _log(trainer, scalars.of_trace(self.recorder.trace))

    def on_fit_end(self, _trainer: Trainer, _pl_module: LightningModule) -> None:
        if self.recorder:
            self.recorder.close()

    def state_dict(self) -> dict[str, Any]:
        return {"estimate": self.estimate.to_json() if self.estimate else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        found = state_dict["estimate"]
        self.estimate = LipschitzEstimate.from_json(found) if found else None

    def _found(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> LipschitzEstimate:
        """The first process finds L, the others hear of it."""
        found: dict[str, Any] | None = None
        if trainer.is_global_zero:
            found = find_learning_rate(
                pl_module,
                _Batches(trainer),
                optimizer=optimizer,
                step=lambda _, ready: _loss(trainer, pl_module, ready.batch, 0),
                **_as_trained(trainer) | self.find,
            ).to_json()
        return LipschitzEstimate.from_json(trainer.strategy.broadcast(found))

    def _set_rates(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        assert self.estimate is not None  # noqa: S101
        check_reliable(self.estimate, allow_unidentified=self.allow_unidentified)
        rate = self.estimate.learning_rate(self.multiple)
        for config in trainer.lr_scheduler_configs:
            rescale_scheduler(config.scheduler, self.estimate, self.multiple, allow_unidentified=True)
        if not trainer.lr_scheduler_configs:
            factor = rate / max(group["lr"] for group in optimizer.param_groups)
            for group in optimizer.param_groups:
                group["lr"] *= factor
        if self.update_attr:
            _set_attribute(pl_module, self.attr_name, rate)


@with_named_options
class OnlineRateCallback(Callback):
    """Find the learning rate within the training itself, by `excite.OnlineRate`: no search before, one run.

    The training starts at `start` times the rate of your optimizer. The rate then grows until training breaks; the
    steps that broke are rolled back, and the rate settles at `multiple`/L. Schedulers keep their shape and follow the
    rate; a warm-up is refused. With several devices all processes decide by their mean loss. A run that is resumed from
    a checkpoint continues the search where it was. Once the rate has settled, L is logged to every logger.

    Args:
        multiple: of 1/L, at most 2. The rate settles there.
        start: the first rate, as a multiple of the optimizer's.
        rung: how many steps to hold each rate, in place of 2.5% of the training.

    Attributes:
        online: the `OnlineRate`, once training has started.
        estimate: L, once the rate has settled.

    ```
    trainer = Trainer(callbacks=[OnlineRateCallback()])
    trainer.fit(module, loader)
    ```
    """

    def __init__(self, multiple: float = 1.0, *, start: float = 0.2, rung: int | None = None) -> None:
        check_positive("start", start)
        self.multiple, self.start, self.rung = multiple, start, rung
        self.online: OnlineRate | None = None
        self._saved: dict[str, Any] | None = None
        self._losses: list[Tensor] = []  # of the batches whose gradients add up to the next step
        self._taken: float | None = None  # the rate of the step just taken

    @property
    def estimate(self) -> LipschitzEstimate | None:
        return self.online.estimate if self.online and self.online.settled else None

    def setup(self, _trainer: Trainer, _pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.online = self._saved = None  # of an earlier fit; a checkpoint is loaded after this

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = _only_optimizer("OnlineRateCallback", trainer, pl_module)
        if isinstance(trainer.strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy):
            raise InputError("OnlineRateCallback needs the whole model in every process; train with strategy='ddp'.")
        steps = trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise InputError("OnlineRateCallback needs the length of the training; pass max_steps to the Trainer.")
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        if self._saved is None:
            for scheduler in schedulers:
                first_rate(scheduler)  # refuses a warm-up
            scale_rates(optimizer, schedulers, self.start)
        self.online = OnlineRate(
            pl_module, optimizer, steps=int(steps), multiple=self.multiple, rung=self.rung, schedulers=schedulers
        )
        if self._saved is not None:
            self.online.restore(**self._saved)
        self._losses, self._taken = [], None

    def on_before_optimizer_step(self, _trainer: Trainer, _pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._taken = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, _pl_module: LightningModule, outputs: Any, _batch: Any, _batch_idx: int
    ) -> None:
        if self.online is None or not outputs:  # `training_step` skipped the batch
            return
        self._losses.append(outputs["loss"].detach() * trainer.accumulate_grad_batches)  # Lightning has divided by it
        if self._taken is None:
            return
        loss = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        settled = self.online.settled
        self.online.after_step(loss, taken=self._taken)
        self._losses, self._taken = [], None
        if self.online.settled and not settled:
            logger.info("%s", self.online.estimate)
            _log(trainer, scalars.of_estimate(self.online.estimate))

    def state_dict(self) -> dict[str, Any]:
        if self.online is None:
            return {}
        tensors, facts = self.online.state()
        return {"tensors": tensors, "facts": facts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict or None


@dataclasses.dataclass(frozen=True)
class _Ready:
    """A batch as `training_step` gets it; nothing in it is moved once more."""

    batch: Any


class _Batches:
    """What the Trainer trains on, from loaders of their own: it has already begun to go through its own."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        loaders = trainer.fit_loop._combined_loader
        self.flattened = [_another(each) for each in loaders.flattened]
        self._loaders = CombinedLoader(loaders.iterables, loaders._mode)
        self._loaders.flattened = self.flattened

    def __iter__(self) -> Iterator[Any]:
        for batch, _, _ in self._loaders:
            yield _Ready(self._transferred(batch))

    def _transferred(self, batch: Any) -> Any:
        """On the Trainer's way, through its precision and the transfer hooks of module and data module."""
        batch = self._trainer.precision_plugin.convert_input(batch)
        batch = self._trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self._trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _another(loader: Any) -> Any:
    if isinstance(loader, DataLoader):
        another = copy.copy(loader)
        another._iterator = None  # with persistent workers, the only one there is
        return another
    if iter(loader) is loader:
        raise InputError("The training data can be gone through only once: pass a DataLoader.")
    return loader


def _as_trained(trainer: Trainer) -> dict[str, Any]:
    """What short trainings must do to the gradients because the Trainer does."""
    clip = trainer.gradient_clip_val or None
    if clip is not None and trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
        raise InputError(
            "PoECallback clips gradients by their norm, this Trainer by value, which gives another L. Pass "
            'gradient_clip_algorithm="norm", or call excite.find_learning_rate yourself, with an optimizer that clips.'
        )
    return {"clip_grad_norm": clip, "accumulate": trainer.accumulate_grad_batches}


def _only_optimizer(callback: str, trainer: Trainer, pl_module: LightningModule) -> Optimizer:
    if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
        raise InputError(
            f"{callback} works with automatic optimization and one optimizer; here are {len(trainer.optimizers)}. "
            "Otherwise call excite.find_learning_rate, with a step function, or excite.OnlineRate for each of them."
        )
    optimizer: Optimizer = trainer.optimizers[0]
    return optimizer


def _loss(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> Tensor:
    arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, batch_idx)  # not all take batch_idx
    with _silent(pl_module), _uncounted(pl_module), trainer.precision_plugin.train_step_context():
        output = pl_module.training_step(*arguments.values())
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise InputError(f"training_step returned {type(output).__name__}; it must return the loss.")
    return loss


@contextlib.contextmanager
def _silent(pl_module: LightningModule) -> Iterator[None]:
    """Inside, what `training_step` logs is not logged: it is not a step of the training."""
    names = ("log", "log_dict")
    for name in names:
        object.__setattr__(pl_module, name, lambda *_arguments, **_options: None)
    try:
        yield
    finally:
        for name in names:
            object.__delattr__(pl_module, name)


@contextlib.contextmanager
def _uncounted(pl_module: LightningModule) -> Iterator[None]:
    """Inside, the module's metrics count in copies of their states, which are neither parameters nor buffers."""
    kept = [(each, dict(vars(each))) for each in pl_module.modules() if isinstance(each, Metric | MetricCollection)]
    for metric, own in kept:
        vars(metric).update({name: _copied(own[name]) for name in own.keys() - OF_EVERY_MODULE})
    try:
        yield
    finally:
        for metric, own in kept:
            vars(metric).clear()
            vars(metric).update(own)


def _copied(state: Any) -> Any:
    """A copy to change in place; what a list holds is only added to."""
    match state:
        case Tensor():
            return state.detach().clone()
        case list():
            return copy.copy(state)
        case dict():
            another = copy.copy(state)
            another.update({key: _copied(value) for key, value in state.items()})
            return another
    return state


def _set_attribute(pl_module: LightningModule, name: str, rate: float) -> None:
    for candidate in (name,) if name else ("lr", "learning_rate"):
        for holder in (pl_module, getattr(pl_module, "hparams", None)):
            if holder is not None and hasattr(holder, candidate):
                setattr(holder, candidate, rate)
                return
    if name:
        raise InputError(f'The module has no attribute "{name}", nor have its hparams; leave out attr_name.')


def _log(trainer: Trainer, values: dict[str, float]) -> None:
    for each in trainer.loggers:
        each.log_metrics(values, step=trainer.global_step)
