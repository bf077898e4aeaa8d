"""A callback for Lightning that finds the learning rate before the training."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.finder.inputs import own_loader
from excite.integrations import FindsRateBefore, needs, silent
from excite.lipschitz import LipschitzEstimate

with needs("excite[lightning]"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import CombinedLoader, GradClipAlgorithmType
    from torchmetrics import Metric, MetricCollection

__all__ = ["PoECallback"]


class PoECallback(FindsRateBefore, Callback):
    """Find L before the training and train at `multiple`/L: the largest rate of your schedule becomes that.

    L is found by `excite.find_learning_rate` with your optimizer, your `training_step` and your training data. Model,
    data order and random state are then restored, and metrics are reset. The rates of all parameter groups are
    multiplied by the same factor, and schedulers are rescaled (see `excite.rescale_scheduler`). A `Recorder` records
    the training. L, acuteness and the share of certified steps are logged to every logger. A run resumed from a
    checkpoint keeps its L.

    Args:
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent rate.
        record: record the training, one moment per epoch.
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

    def setup(self, _trainer: Trainer, _pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.estimate = self.recorder = None  # of an earlier fit; checkpoints are loaded after this

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = _only_optimizer(trainer, pl_module)
        if self.estimate is None:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            _log(trainer, self._find_rate(optimizer, schedulers, lambda: self._find(trainer, pl_module, optimizer)))
        if trainer.world_size == 1:
            self._start_recording(pl_module, optimizer)

    def on_train_epoch_end(self, trainer: Trainer, _pl_module: LightningModule) -> None:
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
            with silent(pl_module, "log", "log_dict"):
                estimate = find_learning_rate(
                    pl_module,
                    _Batches(trainer),
                    optimizer=optimizer,
                    step=lambda _, batch: _loss(trainer, pl_module, batch),
                    **_gradient_options(trainer) | self.find,
                ).to_json()
            for module in pl_module.modules():
                if isinstance(module, Metric | MetricCollection):
                    module.reset()  # what the search has counted
        return LipschitzEstimate.from_json(trainer.strategy.broadcast(estimate))


class _Batches:
    """The Trainer's training data from copies of its loaders, because it is already iterating over its own."""

    def __init__(self, trainer: Trainer) -> None:
        loaders = trainer.fit_loop._combined_loader
        self.flattened = [own_loader(loader) for loader in loaders.flattened]
        self._loaders = CombinedLoader(loaders.iterables, loaders._mode)
        self._loaders.flattened = self.flattened

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _, _ in self._loaders)


def _gradient_options(trainer: Trainer) -> dict[str, Any]:
    """Options that make short runs treat gradients as the Trainer does."""
    clip = trainer.gradient_clip_val or None
    if clip is not None and trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
        raise InputError('PoECallback supports clipping by norm only. Pass gradient_clip_algorithm="norm".')
    return {"clip_grad_norm": clip, "accumulate": trainer.accumulate_grad_batches}


def _only_optimizer(trainer: Trainer, pl_module: LightningModule) -> Optimizer:
    if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
        raise InputError(
            f"PoECallback needs automatic optimization and one optimizer, not {len(trainer.optimizers)}. Otherwise use "
            "excite.find_learning_rate with a step function, or excite.OnlineRate, for each of them."
        )
    return trainer.optimizers[0]  # type: ignore[no-any-return]


def _loss(trainer: Trainer, pl_module: LightningModule, batch: Any) -> Tensor:
    """The loss of a batch, after precision and the transfer hooks in the Trainer's order."""
    batch = trainer.lightning_module._on_before_batch_transfer(trainer.precision_plugin.convert_input(batch))
    batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
    arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, 0)  # not all take batch_idx
    with trainer.precision_plugin.train_step_context():
        output = pl_module.training_step(*arguments.values())
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise InputError(f"training_step returned {type(output).__name__}; it must return the loss.")
    return loss


def _log(trainer: Trainer, values: dict[str, float]) -> None:
    for logger in trainer.loggers if values else ():
        logger.log_metrics(values, step=trainer.global_step)
