"""Callbacks for Hugging Face's Trainer: `PoETrainerCallback` finds L before the training, the other one during it."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from excite.errors import InputError
from excite.finder import find_learning_rate
from excite.integrations import scalars
from excite.integrations.extras import extra
from excite.lipschitz import LipschitzEstimate, OnlineRate
from excite.quantities import check_positive
from excite.registry import with_named_options
from excite.rescaling import first_rate, rescale_scheduler, scale_rates
from excite.trace import Recorder, Trace

with extra("transformers"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["OnlineRateTrainerCallback", "PoETrainerCallback"]

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
        allow_unidentified: train at L even if it is not identified.

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
        allow_unidentified: bool = False,
    ) -> None:
        self.multiple, self.record, self.trainer = multiple, record, trainer
        self.allow_unidentified = allow_unidentified
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
            rescale_scheduler(scheduler, self.estimate, self.multiple, allow_unidentified=self.allow_unidentified)
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


SAVED = "excite_online"  # the attribute of the scheduler that holds the search, so that the Trainer saves it


@with_named_options
class OnlineRateTrainerCallback(TrainerCallback):
    """Find the learning rate within the training itself, by `excite.OnlineRate`: no search before, one run.

    The training starts at `start` times the Trainer's learning rate. The rate then grows until training breaks; the
    steps that broke are rolled back, and the rate settles at `multiple`/L. The schedule keeps its shape and follows the
    rate; it must not warm up: leave `warmup_steps` at 0. With several processes all decide by their mean loss. A run
    that is resumed from a checkpoint continues the search where it was. Once the rate has settled, L is written to
    `state.log_history`.

    The Trainer does not tell a callback its loss. This one reads what the Trainer's `training_step` returns, so it
    works with every subclass of Trainer and with accumulated batches.

    Args:
        trainer: the Trainer.
        multiple: of 1/L, at most 2. The rate settles there.
        start: the first rate, as a multiple of the Trainer's.
        rung: how many steps to hold each rate, in place of 2.5% of the training.

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
        check_positive("start", start)
        self.trainer, self.multiple, self.start, self.rung = trainer, multiple, start, rung
        self.online: OnlineRate | None = None
        self._losses: list[Tensor] = []  # they add up to the loss of the next step
        training_step = trainer.training_step

        def noted(*arguments: Any, **options: Any) -> Tensor:
            loss: Tensor = training_step(*arguments, **options)
            self._losses.append(loss.detach())
            return loss

        trainer.training_step = noted

    @property
    def estimate(self) -> LipschitzEstimate | None:
        return self.online.estimate if self.online and self.online.settled else None

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        *,
        model: nn.Module,
        optimizer: Any,
        lr_scheduler: Any,
        **_: Any,
    ) -> None:
        if self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled:
            raise InputError(
                "OnlineRateTrainerCallback needs the whole model in every process; train without sharding."
            )
        own: Optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps optimizer and scheduler
        scheduler = getattr(lr_scheduler, "scheduler", lr_scheduler)
        saved = getattr(scheduler, SAVED, None) if state.global_step else None
        if saved is None and state.global_step:
            raise InputError(
                "The checkpoint was saved without OnlineRateTrainerCallback. Start a new training with it."
            )
        if saved is None:
            first_rate(scheduler)  # refuses a warm-up
            scale_rates(own, [scheduler], self.start)
        self.online = OnlineRate(
            model, own, steps=state.max_steps, multiple=self.multiple, rung=self.rung, schedulers=[scheduler]
        )
        if saved is not None:
            rates = [group["lr"] for group in own.param_groups]  # the scheduler has stepped since
            self.online.restore(saved["tensors"], saved["facts"] | {"rates": rates})
        self._losses = []

    def on_optimizer_step(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        *,
        lr_scheduler: Any,
        **_: Any,
    ) -> None:
        if self.online is None:
            return
        loss = self.trainer.accelerator.reduce(torch.stack(self._losses).sum(), "mean")
        self._losses, settled = [], self.online.settled
        self.online.after_step(loss)
        if self.online.settled and not settled:
            logger.info("%s", self.online.estimate)
            _log(state, scalars.of_estimate(self.online.estimate))
        tensors, facts = self.online.state()
        setattr(getattr(lr_scheduler, "scheduler", lr_scheduler), SAVED, {"tensors": tensors, "facts": facts})


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
