"""Watch any training loop and keep what the estimators of L need; the run goes on as if nobody had looked."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from excite.errors import InputError
from excite.quantities import MODULE, check_kind, check_whole
from excite.registry import with_named_options
from excite.trace.hessian import largest_curvature
from excite.trace.moments import (
    SKETCH_ENTRIES,
    Moments,
    Storage,
    dense,
    project,
    project_gradient,
    projection_of,
)
from excite.trace.probe import Loss, Objective, Probe, input_gradient
from excite.trace.slopes import LocalSlopes
from excite.trace.trace import Trace
from excite.trace.used_gradient import (
    SINGLE_STEP,
    UNFROZEN,
    UsedGradients,
    caveat,
    check_optimizer,
    held_by,
    trainable,
)

Gradient = Literal["epoch_mean", "probe"]

logger = logging.getLogger(__name__)


@with_named_options
class Recorder:
    """Fills a Trace from any loop; leaves weights, gradients, optimizer, buffers, modes and random state alone.

    ```
    recorder = Recorder(model, optimizer)
    for epoch in range(epochs):
        for x, y in loader:
            def closure(): return loss_fn(model(x), y)
            optimizer.zero_grad(); closure().backward(); optimizer.step()
            recorder.after_step(closure)
        recorder.record()
    recorder.trace
    ```

    Args:
        model: its parameters that require gradients now are the ones observed, and of them those that the optimizer
            holds: nobody else clears the others' gradients.
        optimizer: needed for epoch means, local slopes and learning rates.
        probe: (x, y), fixed examples for `gradient="probe"`, `input_gradients` and for curvatures.
        loss: (logits, targets) -> loss on the probe; `objective`, (model, x, y) -> loss, replaces it.
        gradient: what a moment's gradient is: "epoch_mean", the mean of the gradients that the epoch's steps used, each
            where its step began; "probe", the gradient on the probe where the moment's parameters stand, as it must be
            where an epoch is a single step.
        input_gradients: note beside it the released code's gradient, with respect to the probe's pixels, averaged over
            the batch once more than the loss already does.
        slopes_per_epoch: local slopes per epoch, at steps drawn from (seed, epoch). One costs a forward and a
            backward pass. Without `steps_per_epoch` the first epoch samples its steps 1, 2, 4, 8, ….
        storage: "exact" vectors, a "sketch" of them, or "auto", exact up to 2 million parameters. Of a sketch, lengths
            are known within 2% and cosines within 0.02 (two standard errors of 8,192 `sketch_entries`).
        batch_size: of training; probes are evaluated in batches of this size.
        curvature_every: measure the curvature on the probe at every so many-th moment; 0: never.
        folder: keeps exact vectors in files there, so that checkpoints stay small.

    >>> net = nn.Linear(2, 2)
    >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> recorder = Recorder(net, sgd)
    >>> for _ in range(3):
    ...     for _ in range(2):
    ...         cross_entropy(net(torch.eye(2)), torch.tensor([0, 1])).backward()
    ...         sgd.step()
    ...     recorder.record()
    >>> len(recorder.trace)
    3
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        probe: tuple[Tensor, Tensor] | None = None,
        loss: Loss = cross_entropy,
        objective: Objective | None = None,
        gradient: Gradient = "epoch_mean",
        input_gradients: bool = False,
        slopes_per_epoch: int = 8,
        steps_per_epoch: int | None = None,
        storage: Storage = "auto",
        sketch_entries: int = SKETCH_ENTRIES,
        batch_size: int = 128,
        curvature_every: int = 0,
        curvature_iterations: int = 12,
        seed: int = 0,
        folder: Path | str | None = None,
    ) -> None:
        check_kind("model", model, "parameters", MODULE)
        if optimizer is not None:
            check_kind("optimizer", optimizer, "param_groups", "an optimizer of torch")
        for name, count, least in (
            ("slopes_per_epoch", slopes_per_epoch, 0),
            ("steps_per_epoch", 1 if steps_per_epoch is None else steps_per_epoch, 1),
            ("sketch_entries", sketch_entries, 1),
            ("batch_size", batch_size, 1),
            ("curvature_every", curvature_every, 0),
            ("curvature_iterations", curvature_iterations, 1),
            ("seed", seed, 0),
        ):
            check_whole(name, count, least=least)
        folder = None if folder is None else Path(folder)
        self._model = model
        self._parameters = trainable(model)
        self._check(optimizer, gradient, storage, slopes_per_epoch)
        if optimizer is not None:
            self._parameters = held_by(optimizer, self._parameters)
        self._probe: Probe | None = None
        if probe is not None:
            if not (isinstance(probe, tuple | list) and [isinstance(part, Tensor) for part in probe] == [True, True]):
                raise InputError("A probe is (x, y): a tensor of examples and one of their targets.")
            self._probe = Probe(*probe, batch_size=batch_size, loss=loss, objective=objective, seed=seed)
        if gradient != "epoch_mean" or input_gradients or curvature_every:
            self._needed_probe()
        self._gradient = gradient
        self._curvature_every = curvature_every
        self._curvature_iterations = curvature_iterations
        self._seed = seed
        self._projection = projection_of(self._parameters, storage, sketch_entries, seed)
        initial = project(self._projection, self._parameters)
        self._parameter_moments = Moments("parameters", initial, folder=folder)
        self._gradient_moments = Moments("gradients", None, folder=folder)
        self._input_moments = Moments("input_gradients", None, folder=folder) if input_gradients else None
        self._gradient_sum = self._projection.zeros()
        self._steps_summed = 0
        self._step = 0
        self._rate = math.nan
        self._moments: list[tuple[int, float]] = []
        self._curvatures: list[tuple[float, float, int]] = []
        self._problems: dict[str, str] = {}  # by their kind
        self._keeps = True
        self._slopes = LocalSlopes(
            model,
            self._parameters,
            self._projection,
            per_epoch=slopes_per_epoch if optimizer is not None else 0,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
            complain=self._complain,
        )
        self._facts = {
            "gradient": gradient,
            "storage": self._projection.description,
            "parameters": sum(parameter.numel() for parameter in self._parameters),
            "probe": 0 if self._probe is None else len(self._probe.x),
            "batch_size": batch_size,
            "seed": seed,
        } | ({"input_gradients": True} if input_gradients else {})
        if optimizer is not None and (warning := caveat(optimizer)):
            self._complain("optimizer", warning)
        if storage == "auto":
            logger.info("storage=auto keeps %s", self._projection.description)
        self._handles: list[RemovableHandle] = []
        if optimizer is not None:
            self._used = UsedGradients(optimizer, self._parameters)
            self._handles = [
                *self._used.handles,
                optimizer.register_step_pre_hook(lambda *_: self._slopes.before_step()),
                optimizer.register_step_post_hook(self._after_optimizer_step),
            ]
        self._slopes.expect_step()

    def join(self, average: Callable[[Tensor], Tensor], *, keeps: bool) -> None:
        """This is one of several processes that train one model (DistributedDataParallel), each with a Recorder.

        `average` gives the mean of a tensor over them, at a call in each: the closures of `after_step` see a part of
        the batch only. The one that `keeps` has the trace in the end; the others help to measure it.
        """
        self._slopes.average, self._keeps = average, keeps

    def after_step(self, closure: Callable[[], Tensor]) -> None:
        """At a sampled step, measure how much the gradient changed per length of the step; else return at once.

        `closure` recomputes the loss that the step descended (same batch, same mode) and returns it, without a
        backward pass. The gradient before the step is the one in `.grad` when the step was taken. At the first sampled
        step, and wherever something else than one backward pass wrote to `.grad` (clipping, accumulation), the closure
        is evaluated there too, which costs a pass more: if the two differ, the closure's is used, and `problems` says
        what was done and what to do. A change of the gradient that is lost in rounding gives no slope.
        """
        self._slopes.measure(closure, self._step, self._rate)

    def record(self) -> None:
        """Mark a moment, such as the end of an epoch."""
        if self._keeps:
            self._keep_moment(len(self._moments) + 1)
        self._moments.append((self._step, self._rate))
        self._gradient_sum.zero_()
        self._steps_summed = 0
        self._slopes.end_epoch()

    @property
    def problems(self) -> tuple[str, ...]:
        """What stands between this loop and an L to be trusted, and what to do about it; each was logged too."""
        return tuple(self._problems.values())

    @property
    def trace(self) -> Trace:
        """What was recorded so far."""
        if not self._keeps:
            raise InputError("Another process keeps the trace of this training: ask the Recorder of the first rank.")
        inputs = self._input_moments
        return Trace(
            squared_gradient_distances=self._gradient_moments.squared,
            squared_parameter_distances=self._parameter_moments.squared,
            steps=np.array([step for step, _ in self._moments], dtype=np.int64),
            learning_rates=np.array([rate for _, rate in self._moments]),
            slopes=np.array([slope for slope, _, _ in self._slopes.measured]),
            slope_steps=np.array([step for _, step, _ in self._slopes.measured], dtype=np.int64),
            slope_learning_rates=np.array([rate for _, _, rate in self._slopes.measured]),
            curvatures=np.array([value for value, _, _ in self._curvatures]),
            curvature_residuals=np.array([residual for _, residual, _ in self._curvatures]),
            curvature_steps=np.array([step for _, _, step in self._curvatures], dtype=np.int64),
            facts=self._facts | self._doubts(),
            squared_input_gradient_distances=np.zeros(0) if inputs is None else inputs.squared,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that `restore` needs to go on from here as if the run had not stopped."""
        tensors, moment_facts = {"gradient_sum": self._gradient_sum.clone()}, {}
        for name, moments in self._kept_moments().items():
            own, moment_facts[name] = moments.state()
            tensors |= own
        return tensors, moment_facts | {
            "trace": self._facts,
            "steps_summed": self._steps_summed,
            "step": self._step,
            "step_of_epoch": self._slopes.step_of_epoch,
            "epoch_length": self._slopes.epoch_length,
            "rate": _json_number(self._rate),
            "moments": [[step, _json_number(rate)] for step, rate in self._moments],
            "slopes": [list(slope) for slope in self._slopes.measured],
            "curvatures": [[_json_number(value), _json_number(error), step] for value, error, step in self._curvatures],
            "both_ends": self._slopes.both_ends,
            "problems": dict(self._problems),
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Put back what `state` gave, into a recorder made with the same arguments."""
        if facts["trace"] != self._facts:
            raise InputError(
                f"The saved trace was recorded with {facts['trace']}, this recorder is set to {self._facts}. "
                "Use the same settings, or delete the run to start it again."
            )
        if self._keeps:
            for name, moments in self._kept_moments().items():
                moments.restore(tensors, facts[name])
        self._gradient_sum.copy_(tensors["gradient_sum"])
        self._steps_summed = facts["steps_summed"]
        self._step = facts["step"]
        self._rate = _number(facts["rate"])
        self._moments = [(step, _number(rate)) for step, rate in facts["moments"]]
        self._curvatures = [(_number(value), _number(error), step) for value, error, step in facts["curvatures"]]
        self._problems = dict(facts["problems"])
        slopes = self._slopes
        slopes.measured = [(slope, step, rate) for slope, step, rate in facts["slopes"]]
        slopes.both_ends, slopes.epoch = facts["both_ends"], len(self._moments)
        slopes.step_of_epoch, slopes.epoch_length = facts["step_of_epoch"], facts["epoch_length"]
        slopes.expect_step()

    def close(self) -> None:
        """Stop watching; the trace stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._slopes.close()

    def _after_optimizer_step(self, optimizer: Optimizer, *_: object) -> None:
        gradients = self._used.after_step()
        if self._slopes.step_of_epoch == 0:  # the first of an epoch: layers are unfrozen between epochs
            self._look_for_others(optimizer)
        self._step += 1
        self._rate = float(optimizer.param_groups[0]["lr"])
        if self._gradient == "epoch_mean":
            with torch.no_grad():
                for index, gradient in enumerate(gradients):
                    if gradient is not None:
                        self._projection.add(self._gradient_sum, index, dense(gradient))
            self._steps_summed += 1
        self._slopes.after_step(self._step, gradients)

    def _look_for_others(self, optimizer: Optimizer) -> None:
        watched = {id(parameter) for parameter in self._parameters}
        moving = held_by(optimizer, [parameter for parameter in self._model.parameters() if parameter.requires_grad])
        if any(id(parameter) not in watched for parameter in moving):
            self._complain("unfrozen", UNFROZEN)

    def _doubts(self) -> dict[str, Any]:
        doubts = {"problems": list(self.problems), "cosine_error": self._projection.cosine_error}
        return {name: found for name, found in doubts.items() if found}

    def _complain(self, kind: str, text: str) -> None:
        if kind not in self._problems:
            self._problems[kind] = text
            logger.warning(text)

    def _keep_moment(self, number: int) -> None:
        self._gradient_moments.append(self._moment_gradient())
        self._parameter_moments.append(project(self._projection, self._parameters))
        if self._input_moments is not None:
            self._input_moments.append(input_gradient(self._model, self._needed_probe()))
        if self._curvature_every and number % self._curvature_every == 0:
            curvature = largest_curvature(
                self._model,
                self._needed_probe(),
                parameters=self._parameters,
                iterations=self._curvature_iterations,
                seed=self._seed + number,
            )
            self._curvatures.append((curvature.value, curvature.residual, self._step))

    def _moment_gradient(self) -> Tensor:
        if self._gradient == "epoch_mean":
            if self._steps_summed == 0:
                raise InputError(
                    "record() found no optimizer step since the last one. Call it after an epoch of steps of the "
                    'optimizer that the Recorder was given, or use gradient="probe".'
                )
            if self._steps_summed == 1 and self._moments:
                self._complain("single steps", SINGLE_STEP)
            return self._gradient_sum / self._steps_summed
        vector = self._projection.zeros()
        for _, loss in self._needed_probe().evaluations(self._model):
            project_gradient(self._projection, self._parameters, loss, vector)
        return vector

    def _kept_moments(self) -> dict[str, Moments]:
        every = {
            "gradients": self._gradient_moments,
            "parameters": self._parameter_moments,
            "input_gradients": self._input_moments,
        }
        return {name: moments for name, moments in every.items() if moments is not None}

    def _needed_probe(self) -> Probe:
        if self._probe is None:
            raise InputError("Probe gradients, input gradients and curvatures need examples: pass probe=(x, y).")
        return self._probe

    def _check(self, optimizer: Optimizer | None, gradient: Gradient, storage: Storage, slopes: int) -> None:
        if gradient not in get_args(Gradient) or storage not in get_args(Storage):
            raise InputError(
                f"gradient is one of {get_args(Gradient)}, storage one of {get_args(Storage)}; "
                f"not {gradient!r} and {storage!r}."
            )
        if gradient == "epoch_mean" and optimizer is None:
            raise InputError('Epoch means come from the optimizer\'s steps: pass it, or use gradient="probe".')
        if optimizer is not None:
            watches_steps = slopes > 0 or gradient == "epoch_mean"
            check_optimizer(optimizer, self._parameters, watches_steps=watches_steps)


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
