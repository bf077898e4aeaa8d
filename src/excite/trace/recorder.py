"""Watch any training loop and keep what the estimators of L need, without changing the run."""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS, SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from excite.errors import InputError
from excite.objectives.protocol import Objective
from excite.quantities import MODULE, check_kind, check_whole
from excite.registry import check_choice
from excite.trace import Trace
from excite.trace.batch_statistics import BatchNoise, Draw
from excite.trace.moments import Moments, Storage, dense, project, project_gradient, projection_of
from excite.trace.probe import Loss, Probe, input_gradient, largest_curvature
from excite.trace.slopes import LocalSlopes, UsedGradients

Gradient = Literal["epoch_mean", "probe"]

logger = logging.getLogger(__name__)


class Recorder:
    """Fills a Trace from any loop. Weights, gradients, optimizer, buffers, modes and random state do not change.

    Args:
        model: its parameters that require gradients now are recorded, if the optimizer updates them.
        optimizer: needed for epoch means, local slopes and learning rates.
        probe: (x, y), fixed examples for `gradient="probe"`, `input_gradients` and curvatures.
        loss: (logits, targets) -> loss on the probe.
        objective: (model, x, y) -> loss on the probe; replaces `loss`.
        gradient: the gradient of a moment. "epoch_mean" is the mean of the gradients that the steps of the epoch used.
            "probe" is the gradient on the probe at the moment's parameters; use it if an epoch is a single step.
        input_gradients: also record the released code's gradient: with respect to the probe's pixels, averaged over the
            batch once more than the loss is.
        slopes_per_epoch: number of local slopes per epoch, at steps drawn from (seed, epoch). Each costs a forward and
            a backward pass.
        steps_per_epoch: number of steps in an epoch. If None, the first epoch samples its steps 1, 2, 4, 8, ….
        storage: "exact" stores vectors, "sketch" compresses them to 8,192 numbers, "auto" is exact up to 2 million
            parameters. Lengths of a sketch are accurate to 2% and cosines to 0.02 (two standard errors).
        batch_size: the training batch size; probes are evaluated in batches of this size.
        curvature_every: measure the curvature on the probe at every n-th moment; 0 means never.
        curvature_iterations: largest number of Lanczos iterations per curvature.
        draw: (moment) -> (x, y), training examples drawn anew, at least two batches. At every moment, the mean and the
            noise of the gradient are measured on them, for `expected_acuteness`. This costs a forward and a backward
            pass of each example, and at most two more vectors per moment. The optimizer must be SGD.
        seed: for sampled steps, sketches and random parts of the loss.
        folder: store vectors in files there instead of in memory, which also keeps checkpoints small.

    >>> model, loader = nn.Linear(2, 2), [(torch.eye(2), torch.tensor([0, 1]))] * 4
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> recorder = Recorder(model, optimizer)
    >>> for epoch in range(3):
    ...     for x, y in loader:
    ...         def closure(): return cross_entropy(model(x), y)
    ...         optimizer.zero_grad(); closure().backward(); optimizer.step()
    ...         recorder.after_step(closure)
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
        batch_size: int = 128,
        curvature_every: int = 0,
        curvature_iterations: int = 12,
        draw: Draw | None = None,
        seed: int = 0,
        folder: Path | str | None = None,
    ) -> None:
        check_kind("model", model, "parameters", MODULE)
        check_choice("gradient", Gradient, gradient)
        check_choice("storage", Storage, storage)
        for name, count, least in (
            ("slopes_per_epoch", slopes_per_epoch, 0),
            ("steps_per_epoch", 1 if steps_per_epoch is None else steps_per_epoch, 1),
            ("batch_size", batch_size, 1),
            ("curvature_every", curvature_every, 0),
            ("curvature_iterations", curvature_iterations, 1),
            ("seed", seed, 0),
        ):
            check_whole(name, count, least=least)
        self._model = model
        self._parameters = trainable(model)
        if optimizer is not None:
            self._parameters = held_by(optimizer, self._parameters)
            if isinstance(optimizer, LBFGS) and (slopes_per_epoch or gradient == "epoch_mean"):
                raise InputError(
                    "LBFGS evaluates several points per step, so no single gradient belongs to a step. Record with "
                    'gradient="probe" and slopes_per_epoch=0, or train with SGD.'
                )
        elif gradient == "epoch_mean":
            raise InputError(
                'Epoch means are computed from optimizer steps. Pass the optimizer, or use gradient="probe".'
            )
        if isinstance(probe, Tensor) or (probe and [isinstance(part, Tensor) for part in probe] != [True, True]):
            raise InputError("A probe is (x, y): a tensor of examples and a tensor of their targets.")
        self._probe = probe and Probe(*probe, batch_size=batch_size, loss=loss, objective=objective, seed=seed)
        if gradient == "probe" or input_gradients or curvature_every:
            self._needed_probe()
        self._gradient = gradient
        self._curvature_every, self._curvature_iterations = curvature_every, curvature_iterations
        self._seed = seed
        self._projection = projection_of(self._parameters, storage, seed)
        origins = {"gradients": None, "parameters": project(self._projection, self._parameters)}
        if input_gradients:
            origins["input_gradients"] = None
        folder = None if folder is None else Path(folder)
        self._vectors = {name: Moments(name, origin, folder=folder) for name, origin in origins.items()}
        self._noise = draw and BatchNoise(
            model,
            self._parameters,
            self._projection,
            optimizer,
            draw,
            batch_size=batch_size,
            loss=loss,
            objective=objective,
            seed=seed,
            folder=folder,
        )
        self._gradient_sum = self._projection.zeros()
        self._steps_summed, self._step, self._rate = 0, 0, math.nan
        self._moments: list[tuple[int, float]] = []  # step, learning rate
        self._curvatures: list[tuple[float, float, int]] = []  # value, residual, step
        self._problems: dict[str, str] = {}  # by kind
        self._keeps_trace = True
        self._slopes = LocalSlopes(
            model,
            self._parameters,
            self._projection,
            per_epoch=slopes_per_epoch if optimizer is not None else 0,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
            warn=self._warn,
        )
        self._facts = {
            "gradient": gradient,
            "storage": self._projection.description,
            "parameters": sum(parameter.numel() for parameter in self._parameters),
            "probe": 0 if self._probe is None else len(self._probe.x),
            "batch_size": batch_size,
            "seed": seed,
        } | ({"input_gradients": True} if input_gradients else {})
        if self._noise:
            self._facts["sgd"] = self._noise.facts
        self._handles = [] if optimizer is None else self._watch(optimizer)
        self._slopes.expect_step()

    def _watch(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Follow the steps of the optimizer from now on."""
        if not isinstance(optimizer, SGD):
            name = type(optimizer).__name__
            self._warn(
                "optimizer",
                f"Recorded slopes are slopes of the raw gradient, which {name} rescales, so an L from them gives rates "
                f"for SGD. Use find_learning_rate or find_edge for rates for {name}.",
            )
        self._used = UsedGradients(optimizer, self._parameters)
        return [
            *self._used.handles,
            optimizer.register_step_pre_hook(lambda *_: self._slopes.before_step()),
            optimizer.register_step_post_hook(self._after_optimizer_step),
        ]

    def join(self, average: Callable[[Tensor], Tensor], *, keeps: bool) -> None:
        """Record one of several processes that train one model (DistributedDataParallel), each with a Recorder.

        `average` returns the mean of a tensor over all processes and is called in each of them. It is needed because
        the closures of `after_step` see only part of the batch. Only the process with `keeps=True` has the trace.
        """
        self._slopes.average, self._keeps_trace = average, keeps

    def after_step(self, closure: Callable[[], Tensor]) -> None:
        """At a sampled step, measure the change of the gradient per length of the step; otherwise return at once.

        `closure` recomputes the loss that the step minimized (same batch, same mode) and returns it, without a backward
        pass. The gradient before the step is the one in `.grad` at the time of the step. At the first sampled step, and
        whenever clipping or accumulation changed `.grad`, the closure is evaluated at the old parameters too, which
        costs one more pass. If the two gradients differ, the closure's is used, and `problems` explains what happened
        and what to do. A change of the gradient below rounding error gives no slope.
        """
        self._slopes.measure(closure, self._step, self._rate)

    def record(self) -> None:
        """Record a moment, such as the end of an epoch."""
        if self._keeps_trace:
            self._keep_moment(len(self._moments) + 1)
        self._moments.append((self._step, self._rate))
        self._gradient_sum.zero_()
        self._steps_summed = 0
        self._slopes.end_epoch()

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons not to trust an L from this recording, and what to do about each. They were also logged."""
        return tuple(self._problems.values())

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""
        if not self._keeps_trace:
            raise InputError("Another process keeps the trace of this training. Use the Recorder of rank 0.")
        steps, rates = _columns(self._moments, 2)
        slopes, slope_steps, slope_rates = _columns(self._slopes.measured, 3)
        curvatures, residuals, curvature_steps = _columns(self._curvatures, 3)
        doubts = {"problems": list(self.problems), "cosine_error": self._projection.cosine_error}
        inputs = self._vectors.get("input_gradients")
        return Trace(
            squared_gradient_distances=self._vectors["gradients"].squared,
            squared_parameter_distances=self._vectors["parameters"].squared,
            steps=steps.astype(np.int64),
            learning_rates=rates,
            slopes=slopes,
            slope_steps=slope_steps.astype(np.int64),
            slope_learning_rates=slope_rates,
            curvatures=curvatures,
            curvature_residuals=residuals,
            curvature_steps=curvature_steps.astype(np.int64),
            facts=self._facts | {name: doubt for name, doubt in doubts.items() if doubt},
            squared_input_gradient_distances=np.zeros(0) if inputs is None else inputs.squared,
            batch_statistics=np.array(self._noise.rows(self._vectors["parameters"]) if self._noise else ()),
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state from which `restore` continues as if the run had not stopped: tensors, and values for JSON."""
        tensors, moment_facts = {"gradient_sum": self._gradient_sum.clone()}, {}
        for name, moments in self._vectors.items():
            moment_tensors, moment_facts[name] = moments.state()
            tensors |= moment_tensors
        if self._noise:
            noise_tensors, moment_facts["noise"] = self._noise.state()
            tensors |= noise_tensors
        return tensors, moment_facts | self._slopes.facts() | {
            "trace": self._facts,
            "steps_summed": self._steps_summed,
            "step": self._step,
            "rate": _to_json(self._rate),
            "moments": [[step, _to_json(rate)] for step, rate in self._moments],
            "curvatures": [[_to_json(value), _to_json(error), step] for value, error, step in self._curvatures],
            "problems": dict(self._problems),
        }

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from a `state`, in a recorder created with the same arguments."""
        if facts["trace"] != self._facts:
            raise InputError(
                f"The saved trace was recorded with {facts['trace']}, but this recorder has {self._facts}. Use the "
                "same settings, or delete the run to start again."
            )
        if self._keeps_trace:
            for name, moments in self._vectors.items():
                moments.restore(tensors, facts[name])
            if self._noise:
                self._noise.restore(tensors, facts["noise"])
        self._gradient_sum.copy_(tensors["gradient_sum"])
        self._steps_summed = facts["steps_summed"]
        self._step = facts["step"]
        self._rate = _from_json(facts["rate"])
        self._moments = [(step, _from_json(rate)) for step, rate in facts["moments"]]
        self._curvatures = [(_from_json(value), _from_json(error), step) for value, error, step in facts["curvatures"]]
        self._problems = dict(facts["problems"])
        self._slopes.restore(facts, epoch=len(self._moments))

    def close(self) -> None:
        """Stop recording; the trace remains."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._slopes.close()

    def _after_optimizer_step(self, optimizer: Optimizer, *_: object) -> None:
        gradients = self._used.after_step()
        if self._slopes.step_of_epoch == 0:  # layers are usually unfrozen between epochs
            self._check_unfrozen(optimizer)
        self._step += 1
        self._rate = float(optimizer.param_groups[0]["lr"])
        if self._gradient == "epoch_mean":
            with torch.no_grad():
                for index, gradient in enumerate(gradients):
                    if gradient is not None:
                        self._projection.add(self._gradient_sum, index, dense(gradient))
            self._steps_summed += 1
        self._slopes.after_step(self._step, gradients)

    def _check_unfrozen(self, optimizer: Optimizer) -> None:
        recorded = {id(parameter) for parameter in self._parameters}
        moving = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if any(id(p) in moving - recorded for p in self._model.parameters() if p.requires_grad):
            self._warn(
                "unfrozen",
                "The optimizer now moves parameters that were frozen, or not in the optimizer, when the Recorder was "
                "created. They are not recorded, so slopes and angles do not cover the whole step. Create a new "
                "Recorder after unfreezing layers.",
            )

    def _warn(self, kind: str, text: str) -> None:
        """Log a problem once per kind, and keep it for `problems` and the trace."""
        if kind not in self._problems:
            self._problems[kind] = text
            logger.warning(text)

    def _keep_moment(self, number: int) -> None:
        self._vectors["gradients"].append(self._moment_gradient())
        self._vectors["parameters"].append(project(self._projection, self._parameters))
        if self._noise:
            self._noise.measure(number)
        if "input_gradients" in self._vectors:
            self._vectors["input_gradients"].append(input_gradient(self._model, self._needed_probe()))
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
                    "There was no optimizer step since the last call of record(). Call record() after an epoch of "
                    'steps of the optimizer that the Recorder was given, or use gradient="probe".'
                )
            if self._steps_summed == 1 and self._moments:
                self._warn(
                    "single steps",
                    "There was only one step between two calls of record(). Its gradient was computed before the step "
                    "and the parameters after it, so slopes between such moments are wrong. Call record() after "
                    'several steps, or use gradient="probe" with the training examples as the probe.',
                )
            return self._gradient_sum / self._steps_summed
        vector = self._projection.zeros()
        for _, loss in self._needed_probe().evaluations(self._model):
            project_gradient(self._projection, self._parameters, loss, vector)
        return vector

    def _needed_probe(self) -> Probe:
        if self._probe is None:
            raise InputError("Probe gradients, input gradients and curvatures need examples. Pass probe=(x, y).")
        return self._probe


def trainable(model: nn.Module) -> list[Tensor]:
    """The parameters that require gradients; there must be at least one."""
    parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("No parameter of the model requires a gradient. Unfreeze one with .requires_grad_().")
    return parameters


def held_by(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those of the parameters that the optimizer updates; there must be at least one."""
    check_kind("optimizer", optimizer, "param_groups", "an optimizer of torch")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    updated = [parameter for parameter in parameters if id(parameter) in held]
    if not updated:
        raise InputError(
            "The optimizer holds none of this model's parameters. Create it from model.parameters() of the same model, "
            "after copying the model or moving it to its device."
        )
    return updated


def _columns(rows: list[Any], n_columns: int) -> Any:
    return np.array(rows, dtype=np.float64).reshape(-1, n_columns).T


def _to_json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _from_json(value: float | None) -> float:
    return math.nan if value is None else value
