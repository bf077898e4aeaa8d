"""A callback for Hugging Face's Trainer: finds L before training starts, sets the rate to 1/L, records the epochs."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.integrations import scalars
from excite.integrations.extras import extra
from excite.lipschitz import LipschitzEstimate
from excite.registry import with_named_options
from excite.rescaling import first_rate, rescale_scheduler
from excite.trace import Recorder, Trace

with extra("transformers"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["PoETrainerCallback"]

logger = logging.getLogger(__name__)


@with_named_options
class PoETrainerCallback(TrainerCallback):
    """Start training at `multiple`/L: η¹ = `multiple`/L, ηᵏ = η¹ · γᵏ/γ¹ with the Trainer's schedule γ.

    Before the first step L is found by `excite.find_learning_rate`, with the Trainer's optimizer, clipping,
    accumulation and data, from the weights the model has; model, data order and random state are then as before. The
    schedule must not warm up: leave `warmup_steps` at 0. L, acuteness and the share of certified steps are written to
    `state.log_history`, which the Trainer saves. A run that is resumed keeps the rates of its checkpoint.

    A callback is not told the Trainer's loss. L is that of `model(**batch).loss`, unless you hand over the Trainer:
    then it is that of its `compute_loss`, with label smoothing, a `compute_loss_func` and a `compute_loss` of your own.

    Args:
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent one.
        record: watch the training, a moment per epoch.
        find: options of `find_learning_rate`, for instance {"budget": 500}, or a "step" (model, batch) -> loss, which
            goes before every other loss.
        trainer: the Trainer, where its loss is not the model's own.

    Attributes:
        estimate: L, once it is found.
        recorder: with the `Trace` of the training in `recorder.trace`.

    ```
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.add_callback(PoETrainerCallback(trainer=trainer))
    trainer.train()
    ```
    """

    def __init__(
        self,
        multiple: float = 1.0,
        *,
        record: bool = True,
        find: dict[str, Any] | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        self.multiple, self.record, self.trainer = multiple, record, trainer
        self.find = {"weights": "present", **(find or {})}
        self.estimate: LipschitzEstimate | None = None
        self.recorder: Recorder | None = None

    @property
    def trace(self) -> Trace | None:
        return self.recorder.trace if self.recorder else None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        *,
        model: nn.Module,
        optimizer: Any,
        lr_scheduler: Any,
        train_dataloader: Any,
        **_: Any,
    ) -> None:
        own: Optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps optimizer and scheduler
        if state.global_step:
            logger.info("Resumed at step %d: its rates are those of the checkpoint.", state.global_step)
        elif args.world_size > 1:
            raise InputError(
                "PoETrainerCallback works in one process. Find L there first (excite.find_learning_rate), then pass "
                "learning_rate=estimate.learning_rate() to TrainingArguments."
            )
        else:
            scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)
            first_rate(scheduler)  # refuses a warm-up before the time is spent
            options = {
                "clip_grad_norm": args.max_grad_norm or None,
                "accumulate": args.gradient_accumulation_steps,
                **self._own_step(args),
                **self.find,
            }
            with _silent(self.trainer):
                self.estimate = find_learning_rate(model, train_dataloader, optimizer=own, **options)
            rescale_scheduler(scheduler, self.estimate, self.multiple)
            logger.info("%s", self.estimate)
            _log(state, scalars.of_estimate(self.estimate))
        if self.record:
            self.recorder = Recorder(model, own, slopes_per_epoch=0)

    def _own_step(self, args: TrainingArguments) -> dict[str, Any]:
        """The `step` that computes the Trainer's loss; none where that is the model's own."""
        if self.trainer is not None:
            return {"step": lambda model, batch: _loss(self.trainer, model, batch)}
        if args.label_smoothing_factor and "step" not in self.find:
            raise InputError(
                f"With label_smoothing_factor={args.label_smoothing_factor:g} the loss is the Trainer's, not the "
                "model's own. Hand it over: trainer.add_callback(PoETrainerCallback(trainer=trainer))."
            )
        return {}

    def on_epoch_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        if self.recorder:
            self.recorder.record()
            _log(state, scalars.of_trace(self.recorder.trace))

    def on_train_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        if self.recorder:
            self.recorder.close()


def _loss(trainer: Trainer, model: nn.Module, batch: Any) -> Tensor:
    """As the Trainer computes it in a step of this batch alone."""
    _, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
    with trainer.compute_loss_context_manager():
        loss: Tensor = trainer.compute_loss(model, trainer._prepare_inputs(batch), num_items_in_batch=items)
    return loss


@contextlib.contextmanager
def _silent(trainer: Trainer | None) -> Iterator[None]:
    """Inside, what `compute_loss` logs is not logged: it is not a step of the training."""
    if trainer is None:
        yield
        return
    trainer.log = lambda *_arguments, **_options: None
    try:
        yield
    finally:
        del trainer.log


def _log(state: TrainerState, values: dict[str, float]) -> None:
    if values:
        state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})
