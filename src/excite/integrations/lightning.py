"""Callbacks for Lightning that find the learning rate, before or during the training."""

import contextlib
import copy
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.finder.inputs import own_loader
from excite.integrations import FindsRateBefore, FindsRateDuring, estimate_values, extra, silent
from excite.lipschitz import LipschitzEstimate
from excite.trace import Recorder

with extra("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
    from lightning.pytorch.utilities import CombinedLoader, GradClipAlgorithmType
    from torchmetrics import Metric, MetricCollection

__all__ = ["OnlineRateCallback", "PoECallback"]

MODULE_ATTRIBUTES = vars(nn.Module()).keys()


class PoECallback(FindsRateBefore, Callback):
    """Find L before the training and train at `multiple`/L: the largest rate of your schedule becomes that.

    L is found by `excite.find_learning_rate` with your optimizer, your `training_step` and your training data. Model,
    metrics, data order and random state are then restored. The rates of all parameter groups are multiplied by the same
    factor, and schedulers are rescaled (see `excite.rescale_scheduler`). A `Recorder` watches the training. L,
    acuteness, the share of certified steps and local slopes are logged to every logger. A run resumed from a checkpoint
    keeps its L.

    Args:
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent rate.
        record: record the training; costs two forward and backward passes at `slopes_per_epoch` steps of each epoch.
        slopes_per_epoch: number of local slopes per epoch; 0 is used if gradients are clipped or accumulated.
        find: options of `find_learning_rate`, for example {"budget": 1000, "weights": "present"}.
        allow_unidentified: train at 1/L even if L is not identified.

    Attributes:
        estimate: L, once it is found.
        recorder: the Recorder; `recorder.trace` is the Trace of the training.

    ```
    trainer = Trainer(callbacks=[PoECallback()])
    trainer.fit(module, loader)
    ```
    """

    def __init__(
        self,
        multiple: float = 1.0,
        *,
        record: bool = True,
        slopes_per_epoch: int = 8,
        find: dict[str, Any] | None = None,
        allow_unidentified: bool = False,
    ) -> None:
        super().__init__(multiple, record=record, find=find, allow_unidentified=allow_unidentified)
        self.slopes_per_epoch = slopes_per_epoch

    def setup(self, _trainer: Trainer, _pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.estimate = self.recorder = None  # of an earlier fit; checkpoints are loaded after this

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = _only_optimizer("PoECallback", trainer, pl_module)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        if self.estimate is None:
            values = self._find_rate(optimizer, schedulers, lambda: self._find(trainer, pl_module, optimizer))
        else:  # of a checkpoint
            values = estimate_values(self.estimate)
        _log(trainer, values)
        if self.record and trainer.world_size == 1:
            unchanged = trainer.accumulate_grad_batches == 1 and not trainer.gradient_clip_val
            self.recorder = Recorder(pl_module, optimizer, slopes_per_epoch=self.slopes_per_epoch if unchanged else 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.recorder:
            self.recorder.after_step(lambda: _loss(trainer, pl_module, batch, batch_idx))

    def on_train_epoch_end(self, trainer: Trainer, _pl_module: LightningModule) -> None:
        if self.recorder:
            _log(trainer, self._record_epoch())

    def on_fit_end(self, _trainer: Trainer, _pl_module: LightningModule) -> None:
        self._stop_recording()

    def state_dict(self) -> dict[str, Any]:
        return {"estimate": self.estimate.to_json() if self.estimate else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["estimate"]
        self.estimate = LipschitzEstimate.from_json(saved) if saved else None

    def _find(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> LipschitzEstimate:
        """The first process finds L and sends it to the others."""
        estimate: dict[str, Any] | None = None
        if trainer.is_global_zero:
            estimate = find_learning_rate(
                pl_module,
                _Batches(trainer),
                optimizer=optimizer,
                step=lambda _, prepared: _loss(trainer, pl_module, prepared.batch, 0),
                **_gradient_options(trainer) | self.find,
            ).to_json()
        return LipschitzEstimate.from_json(trainer.strategy.broadcast(estimate))


class OnlineRateCallback(FindsRateDuring, Callback):
    """Find the learning rate during the training, by `excite.OnlineRate`: one run, no search before it.

    Training starts at `start` times the rate of your optimizer. The rate grows until training breaks; then the last
    steps are rolled back, and the rate settles at `multiple`/L. Schedulers keep their shape and follow the rate; they
    must not warm up. Several devices decide by their mean loss. A run resumed from a checkpoint continues the search.
    Once the rate has settled, L is logged to every logger.

    Args:
        multiple: the rate settles at `multiple`/L; at most 2.
        start: the first rate, as a multiple of the optimizer's.
        rung: number of steps at each rate; by default 2.5% of the training.

    Attributes:
        online: the `OnlineRate`, once training has started.
        estimate: L, once the rate has settled.

    ```
    trainer = Trainer(callbacks=[OnlineRateCallback()])
    trainer.fit(module, loader)
    ```
    """

    def __init__(self, multiple: float = 1.0, *, start: float = 0.2, rung: int | None = None) -> None:
        super().__init__(multiple, start, rung)
        self._saved: dict[str, Any] | None = None
        self._taken: float | None = None  # the rate of the step just taken

    def setup(self, _trainer: Trainer, _pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.online = self._saved = None  # of an earlier fit; checkpoints are loaded after this

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = _only_optimizer("OnlineRateCallback", trainer, pl_module)
        if isinstance(trainer.strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy):
            raise InputError("OnlineRateCallback needs the whole model in every process; use strategy='ddp'.")
        steps = trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise InputError("OnlineRateCallback needs the length of the training; pass max_steps to the Trainer.")
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._begin(pl_module, optimizer, schedulers, steps=int(steps), saved=self._saved)
        self._taken = None

    def on_before_optimizer_step(self, _trainer: Trainer, _pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._taken = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, _pl_module: LightningModule, outputs: Any, _batch: Any, _batch_idx: int
    ) -> None:
        if self.online is None or not outputs:  # `training_step` skipped the batch
            return
        self._losses.append(outputs["loss"].detach() * trainer.accumulate_grad_batches)  # Lightning divided by it
        if self._taken is None:
            return
        loss = trainer.strategy.reduce(torch.stack(self._losses).mean(), reduce_op="mean")
        values = self._after_step(loss, self._taken)
        self._taken = None
        if values:
            _log(trainer, values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict or None


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A batch as `training_step` receives it, wrapped so that `find_learning_rate` does not move it again."""

    batch: Any


class _Batches:
    """The Trainer's training data from copies of its loaders, because it is already iterating over its own."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        loaders = trainer.fit_loop._combined_loader
        self.flattened = [own_loader(loader) for loader in loaders.flattened]
        self._loaders = CombinedLoader(loaders.iterables, loaders._mode)
        self._loaders.flattened = self.flattened

    def __iter__(self) -> Iterator[Any]:
        trainer = self._trainer
        for batch, _, _ in self._loaders:  # then precision and the transfer hooks, in the Trainer's order
            converted = trainer.precision_plugin.convert_input(batch)
            hooked = trainer.lightning_module._on_before_batch_transfer(converted, dataloader_idx=0)
            yield _Prepared(trainer.strategy.batch_to_device(hooked, dataloader_idx=0))


def _gradient_options(trainer: Trainer) -> dict[str, Any]:
    """Options that make short runs treat gradients as the Trainer does."""
    clip = trainer.gradient_clip_val or None
    if clip is not None and trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
        raise InputError('PoECallback supports clipping by norm only. Pass gradient_clip_algorithm="norm".')
    return {"clip_grad_norm": clip, "accumulate": trainer.accumulate_grad_batches}


def _only_optimizer(callback: str, trainer: Trainer, pl_module: LightningModule) -> Optimizer:
    if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
        raise InputError(
            f"{callback} needs automatic optimization and one optimizer, not {len(trainer.optimizers)}. Otherwise use "
            "excite.find_learning_rate with a step function, or excite.OnlineRate, for each of them."
        )
    return trainer.optimizers[0]  # type: ignore[no-any-return]


def _loss(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> Tensor:
    arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, batch_idx)  # not all take batch_idx
    with silent(pl_module, "log", "log_dict"), _uncounted(pl_module), trainer.precision_plugin.train_step_context():
        output = pl_module.training_step(*arguments.values())
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise InputError(f"training_step returned {type(output).__name__}; it must return the loss.")
    return loss


@contextlib.contextmanager
def _uncounted(pl_module: LightningModule) -> Iterator[None]:
    """Inside, metrics update copies of their states, which are neither parameters nor buffers."""
    metrics = [module for module in pl_module.modules() if isinstance(module, Metric | MetricCollection)]
    saved = [(metric, dict(vars(metric))) for metric in metrics]
    for metric, attributes in saved:
        vars(metric).update({name: _copied(attributes[name]) for name in attributes.keys() - MODULE_ATTRIBUTES})
    try:
        yield
    finally:
        for metric, attributes in saved:
            vars(metric).clear()
            vars(metric).update(attributes)


def _copied(state: Any) -> Any:
    """A copy that can be changed in place. Entries of a list are shared: metrics only append to lists."""
    match state:
        case Tensor():
            return state.detach().clone()
        case list():
            return copy.copy(state)
        case dict():
            copied = copy.copy(state)
            copied.update({key: _copied(value) for key, value in state.items()})
            return copied
    return state


def _log(trainer: Trainer, values: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)
