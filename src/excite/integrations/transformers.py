"""A callback for Hugging Face's Trainer that finds the learning rate before the training."""

import logging
from functools import partial
from typing import Any

from torch import Tensor, nn

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.integrations import FindsRateBefore, needs, silent

with needs("excite[transformers]"):
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

__all__ = ["PoETrainerCallback"]

logger = logging.getLogger(__name__)


class PoETrainerCallback(FindsRateBefore, TrainerCallback):
    """Find L before the training and train at `multiple`/L: the largest rate of the Trainer's schedule becomes that.

    L is found by `excite.find_learning_rate` with the Trainer's optimizer, gradient clipping, accumulation and data,
    starting from the model's current weights. Model, data order and random state are then restored. A warm-up keeps its
    shape, and its peak becomes `multiple`/L. L, acuteness and the share of certified steps are written to
    `state.log_history`, which the Trainer saves. A resumed run keeps the rates of its checkpoint.

    A callback does not know the Trainer's loss. Without `trainer`, L is that of `model(**batch).loss`. Pass the Trainer
    if it computes another loss: label smoothing, a `compute_loss_func` or a `compute_loss` of your own.

    Args:
        multiple: 1 for the persistently exciting rate 1/L, 2 for the largest convergent rate.
        record: record the training, one moment per epoch.
        find: options of `find_learning_rate`, for example {"budget": 500}. A "step" (model, batch) -> loss takes
            precedence over every other loss.
        trainer: the Trainer, if its loss is not the model's own.
        allow_unidentified: train at 1/L even if L is not identified.

    Attributes:
        estimate: L, once it is found.
        recorder: the Recorder; `recorder.trace` is the Trace of the training.

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
        allow_unidentified: bool = False,
    ) -> None:
        options = {"weights": "present", **(find or {})}
        super().__init__(multiple, record=record, find=options, allow_unidentified=allow_unidentified)
        self.trainer = trainer

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        _control: Any,
        *,
        model: nn.Module,
        optimizer: Any,
        lr_scheduler: Any,
        train_dataloader: Any,
        **_: Any,
    ) -> None:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it, and the scheduler
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)
        if state.global_step:
            logger.info("Resumed at step %d with the learning rates of the checkpoint.", state.global_step)
        elif args.world_size > 1:
            raise InputError(
                "PoETrainerCallback works in one process only. Find L in one process with excite.find_learning_rate, "
                "then pass learning_rate=estimate.learning_rate() to TrainingArguments."
            )
        else:
            find = partial(find_learning_rate, model, train_dataloader, optimizer=optimizer, **self._options(args))
            _log(state, self._find_rate(optimizer, [scheduler], find))
        self._start_recording(model, optimizer)

    def on_epoch_end(self, _args: Any, state: TrainerState, _control: Any, **_: Any) -> None:
        _log(state, self._record_epoch())

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._stop_recording()

    def _options(self, args: TrainingArguments) -> dict[str, Any]:
        """Options that make short runs compute losses and gradients as the Trainer does."""
        options: dict[str, Any] = {
            "clip_grad_norm": args.max_grad_norm or None,
            "accumulate": args.gradient_accumulation_steps,
        }
        if self.trainer is not None:
            options["step"] = partial(_loss, self.trainer)
        elif args.label_smoothing_factor and "step" not in self.find:
            raise InputError(
                f"With label_smoothing_factor={args.label_smoothing_factor:g} the Trainer's loss is not the model's. "
                "Pass the Trainer: trainer.add_callback(PoETrainerCallback(trainer=trainer))."
            )
        return options | self.find


def _loss(trainer: Trainer, model: nn.Module, batch: Any) -> Tensor:
    """The loss that the Trainer would compute in a step with this batch alone."""
    _, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
    with silent(trainer, "log"), trainer.compute_loss_context_manager():
        loss: Tensor = trainer.compute_loss(model, trainer._prepare_inputs(batch), num_items_in_batch=items)
    return loss


def _log(state: TrainerState, values: dict[str, float]) -> None:
    if values:
        state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})
