"""Callbacks for Hugging Face's Trainer that find the learning rate, before or during the training."""

import contextlib
import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.integrations import FindsRateBefore, FindsRateDuring, needs, silent

with needs("excite[transformers]"):
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

__all__ = ["OnlineRateTrainerCallback", "PoETrainerCallback"]

logger = logging.getLogger(__name__)

SAVED = "excite_online"  # attribute of the scheduler that holds the search, so that the Trainer saves it


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

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _control: Any, **given: Any) -> None:
        model, optimizer, scheduler = _trained(given)
        if state.global_step:
            logger.info("Resumed at step %d with the learning rates of the checkpoint.", state.global_step)
        elif args.world_size > 1:
            raise InputError(
                "PoETrainerCallback works in one process only. Find L in one process with excite.find_learning_rate, "
                "then pass learning_rate=estimate.learning_rate() to TrainingArguments."
            )
        else:
            options = {
                "clip_grad_norm": args.max_grad_norm or None,
                "accumulate": args.gradient_accumulation_steps,
                **self._step_option(args),
                **self.find,
            }
            find = partial(find_learning_rate, model, given["train_dataloader"], optimizer=optimizer, **options)
            with silent(self.trainer, "log") if self.trainer else contextlib.nullcontext():
                values = self._find_rate(optimizer, [scheduler], find)
            _log(state, values)
        self._start_recording(model, optimizer)

    def on_epoch_end(self, _args: Any, state: TrainerState, _control: Any, **_: Any) -> None:
        _log(state, self._record_epoch())

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._stop_recording()

    def _step_option(self, args: TrainingArguments) -> dict[str, Any]:
        """A `step` that computes the Trainer's loss; empty if that is the model's own."""
        if self.trainer is not None:
            return {"step": lambda model, batch: _loss(self.trainer, model, batch)}
        if args.label_smoothing_factor and "step" not in self.find:
            raise InputError(
                f"With label_smoothing_factor={args.label_smoothing_factor:g} the Trainer's loss is not the model's. "
                "Pass the Trainer: trainer.add_callback(PoETrainerCallback(trainer=trainer))."
            )
        return {}


class OnlineRateTrainerCallback(FindsRateDuring, TrainerCallback):
    """Find the learning rate during the training, by `excite.OnlineRate`: one run, no search before it.

    Training starts at `start` times the Trainer's learning rate. The rate grows until training breaks; then the last
    steps are rolled back, and the rate settles at `multiple`/L. The schedule keeps its shape and follows the rate. It
    must not warm up: leave `warmup_steps` at 0. Several processes decide by their mean loss. A resumed run continues
    the search. Once the rate has settled, L is written to `state.log_history`.

    The Trainer does not tell callbacks its loss. This one reads the return value of the Trainer's `training_step`, so
    it works with every subclass of Trainer and with accumulated batches.

    Args:
        trainer: the Trainer.
        multiple: the rate settles at `multiple`/L; at most 2.
        start: the first rate, as a multiple of the Trainer's.
        rung: number of steps at each rate; by default 2.5% of the training.

    Attributes:
        online: the `OnlineRate`, once training has started.
        estimate: L, once the rate has settled.

    ```
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.add_callback(OnlineRateTrainerCallback(trainer))
    trainer.train()
    ```
    """

    def __init__(self, trainer: Trainer, multiple: float = 1.0, *, start: float = 0.2, rung: int | None = None) -> None:
        super().__init__(multiple, start, rung)
        self.trainer = trainer
        training_step = trainer.training_step

        def training_step_with_note(*arguments: Any, **options: Any) -> Tensor:
            loss: Tensor = training_step(*arguments, **options)
            self._losses.append(loss.detach())  # the losses of a step's batches add up to its loss
            return loss

        trainer.training_step = training_step_with_note

    def on_train_begin(self, _args: TrainingArguments, state: TrainerState, _control: Any, **given: Any) -> None:
        if self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled:
            raise InputError(
                "OnlineRateTrainerCallback needs the whole model in every process; train without sharding."
            )
        model, optimizer, scheduler = _trained(given)
        saved = getattr(scheduler, SAVED, None) if state.global_step else None
        if saved is not None:  # the scheduler has stepped since
            rates = [group["lr"] for group in optimizer.param_groups]
            saved = {"tensors": saved["tensors"], "facts": saved["facts"] | {"rates": rates}}
        elif state.global_step:
            raise InputError("The checkpoint was saved without OnlineRateTrainerCallback; start a new training.")
        self._begin(model, optimizer, [scheduler], steps=state.max_steps, saved=saved)

    def on_optimizer_step(self, _args: Any, state: TrainerState, _control: Any, *, lr_scheduler: Any, **_: Any) -> None:
        if self.online is None:
            return
        _log(state, self._after_step(self.trainer.accelerator.reduce(torch.stack(self._losses).sum(), "mean")))
        setattr(getattr(lr_scheduler, "scheduler", lr_scheduler), SAVED, self.state_dict())


def _trained(given: dict[str, Any]) -> tuple[nn.Module, Optimizer, LRScheduler]:
    """The model, the optimizer and the scheduler; accelerate wraps the latter two."""
    optimizer, scheduler = given["optimizer"], given["lr_scheduler"]
    return given["model"], getattr(optimizer, "optimizer", optimizer), getattr(scheduler, "scheduler", scheduler)


def _loss(trainer: Trainer, model: nn.Module, batch: Any) -> Tensor:
    """The loss that the Trainer would compute in a step with this batch alone."""
    _, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
    with trainer.compute_loss_context_manager():
        loss: Tensor = trainer.compute_loss(model, trainer._prepare_inputs(batch), num_items_in_batch=items)
    return loss


def _log(state: TrainerState, values: dict[str, float]) -> None:
    if values:
        state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})
