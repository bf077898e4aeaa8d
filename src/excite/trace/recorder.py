"""Watch any training loop and keep what the estimators of L need, without changing the run."""

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
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
from excite.trace.moments import Moments, Storage, project, project_gradient, projection_of, zeros
from excite.trace.probe import Loss, Probe, input_gradient, largest_curvature
from excite.trace.slopes import LocalSlopes, Log

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
        slopes_per_epoch: number of local slopes per epoch, at steps drawn from (seed, epoch). Each costs two forward
            and backward passes.
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

    >>> import torch
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
        if optimizer is None and gradient == "epoch_mean":
            raise InputError('Epoch means need the optimizer. Pass it, or use gradient="probe".')
        if isinstance(optimizer, LBFGS) and (slopes_per_epoch or gradient == "epoch_mean"):
            raise InputError(
                'LBFGS evaluates several points per step. Record with gradient="probe" and slopes_per_epoch=0.'
            )
        # What to record.
        self._model, self._gradient, self._seed = model, gradient, seed
        self._curvature_every, self._curvature_iterations = curvature_every, curvature_iterations
        self._parameters = trainable(model) if optimizer is None else held_by(optimizer, trainable(model))
        make_probe = partial(Probe, loss=loss, objective=objective)
        if probe is None and (gradient == "probe" or input_gradients or curvature_every):
            raise InputError("Probe gradients, input gradients and curvatures need examples. Pass probe=(x, y).")
        if isinstance(probe, Tensor) or (probe and [isinstance(part, Tensor) for part in probe] != [True, True]):
            raise InputError("A probe is (x, y): a tensor of examples and a tensor of their targets.")
        self._probe: Any = probe and make_probe(*probe, batch_size=batch_size, seed=seed)  # None if nothing needs it
        # Where to keep it.
        self._projection = projection_of(self._parameters, storage, seed)
        origins = {"gradients": None, "parameters": project(self._projection, self._parameters)}
        if input_gradients:
            origins["input_gradients"] = None
        folder = None if folder is None else Path(folder)
        self._vectors = {name: Moments(name, origin, folder=folder) for name, origin in origins.items()}
        recorded = (model, self._parameters, self._projection)
        self._noise = draw and BatchNoise(
            *recorded, optimizer, draw, make_probe=make_probe, batch_size=batch_size, seed=seed, folder=folder
        )
        self._parts: dict[str, Moments | BatchNoise] = self._vectors | ({"noise": self._noise} if self._noise else {})
        # What was recorded so far.
        self._gradient_sum = zeros(self._projection)
        self._log = Log(epoch_length=steps_per_epoch)
        self._keeps_trace = True
        self._facts: dict[str, Any] = {  # of the trace
            "gradient": gradient,
            "storage": self._projection.description,
            "parameters": sum(parameter.numel() for parameter in self._parameters),
            "probe": 0 if self._probe is None else len(self._probe.x),
            "batch_size": batch_size,
            "seed": seed,
            **({"input_gradients": True} if input_gradients else {}),
            **({"sgd": self._noise.facts} if self._noise else {}),
        }
        # Follow the steps of the optimizer from now on.
        self._slopes = LocalSlopes(*recorded, slopes_per_epoch, seed, self._log)
        self._handles: list[RemovableHandle] = []
        if optimizer is not None:
            if not isinstance(optimizer, SGD):
                name = type(optimizer).__name__
                self._warn(
                    "optimizer",
                    f"Slopes are those of the raw gradient, which {name} rescales, so an L from them gives rates for "
                    f"SGD. Use find_learning_rate or find_edge for rates for {name}.",
                )
            self._handles.append(optimizer.register_step_pre_hook(self._before_optimizer_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_optimizer_step))

    def join(self, average: Callable[[Tensor], Tensor], *, keeps: bool) -> None:
        """Record one of several processes that train one model (DistributedDataParallel), each with a Recorder.

        `average` returns the mean of a tensor over all processes and is called in each of them. It is needed because
        the closures of `after_step` see only part of the batch. Only the process with `keeps=True` has the trace.
        """
        self._slopes.average, self._keeps_trace = average, keeps

    def after_step(self, closure: Callable[[], Tensor]) -> None:
        """At a sampled step, measure the change of the gradient per length of the step; otherwise return at once.

        `closure` recomputes the loss that the step minimized (same batch, same mode) and returns it, without a backward
        pass. It is evaluated at the parameters before and after the step, with the same random numbers. A change of the
        gradient below rounding error gives no slope.
        """
        self._slopes.measure(closure)

    def record(self) -> None:
        """Record a moment, such as the end of an epoch."""
        if self._keeps_trace:
            self._measure_moment(len(self._log.moments) + 1)
        self._log.moments.append((self._log.step, self._log.rate))
        self._gradient_sum.zero_()
        self._log.epoch_length = self._log.epoch_length or self._log.step_of_epoch or None
        self._log.step_of_epoch = self._log.steps_summed = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons not to trust an L from this recording, and what to do about each. They were also logged."""
        return tuple(self._log.problems.values())

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""
        if not self._keeps_trace:
            raise InputError("Another process keeps the trace of this training. Use the Recorder of rank 0.")
        doubts = {"problems": list(self.problems), "cosine_error": self._projection.cosine_error}
        inputs = self._vectors.get("input_gradients")
        return Trace(
            squared_gradient_distances=self._vectors["gradients"].squared,
            squared_parameter_distances=self._vectors["parameters"].squared,
            **_columns(self._log.moments, "steps", "learning_rates"),
            **_columns(self._log.slopes, "slopes", "slope_steps", "slope_learning_rates"),
            **_columns(self._log.curvatures, "curvatures", "curvature_residuals", "curvature_steps"),
            facts=self._facts | {name: doubt for name, doubt in doubts.items() if doubt},
            squared_input_gradient_distances=np.zeros(0) if inputs is None else inputs.squared,
            batch_statistics=np.array(self._noise.rows(self._vectors["parameters"]) if self._noise else ()),
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state from which `restore` continues as if the run had not stopped: tensors, and values for JSON."""
        tensors: dict[str, Tensor] = {"gradient_sum": self._gradient_sum.clone()}
        facts = {"trace": self._facts} | asdict(self._log)
        for name, part in self._parts.items():
            part_tensors, facts[name] = part.state()
            tensors |= part_tensors
        return tensors, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from a `state`, in a recorder created with the same arguments."""
        if facts["trace"] != self._facts:
            raise InputError(
                f"The saved trace was recorded with {facts['trace']}, but this recorder has {self._facts}. Use the "
                "same settings, or delete the run to start again."
            )
        if self._keeps_trace:
            for name, part in self._parts.items():
                part.restore(tensors, facts[name])
        self._gradient_sum.copy_(tensors["gradient_sum"])
        self._log = self._slopes.log = Log(**copy.deepcopy({each.name: facts[each.name] for each in fields(Log)}))

    def close(self) -> None:
        """Stop recording; the trace remains."""
        for handle in self._handles:
            handle.remove()

    def _before_optimizer_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        """Read the gradients before the step, because some optimizers overwrite them; a closure computes them in it."""
        self._slopes.before_step()
        if self._gradient == "probe":
            return None
        closure = (*arguments[1:], options.get("closure"))[0]  # the first argument is the optimizer
        if closure is None:
            self._note_gradient(optimizer)
            return None

        def closure_and_note() -> Any:
            loss = closure()
            self._note_gradient(optimizer)
            return loss

        return (arguments[0], closure_and_note), {}

    def _note_gradient(self, optimizer: Optimizer) -> None:
        gradients = [parameter.grad for parameter in self._parameters]
        scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler, for a fused optimizer, which divides by it
        if scale is not None:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
        self._gradient_sum += project(self._projection, gradients)
        self._log.steps_summed += 1

    def _after_optimizer_step(self, optimizer: Optimizer, *_: object) -> None:
        self._log.step += 1
        self._log.step_of_epoch += 1
        self._log.rate = float(optimizer.param_groups[0]["lr"])

    def _warn(self, kind: str, text: str) -> None:
        """Log a problem once per kind, and keep it for `problems` and the trace."""
        if kind not in self._log.problems:
            self._log.problems[kind] = text
            logger.warning(text)

    def _measure_moment(self, number: int) -> None:
        self._vectors["gradients"].append(self._moment_gradient())
        self._vectors["parameters"].append(project(self._projection, self._parameters))
        if self._noise:
            self._noise.measure(number)
        if "input_gradients" in self._vectors:
            self._vectors["input_gradients"].append(input_gradient(self._model, self._probe))
        if self._curvature_every and number % self._curvature_every == 0:
            curvature = largest_curvature(
                self._model,
                self._probe,
                parameters=self._parameters,
                iterations=self._curvature_iterations,
                seed=self._seed + number,
            )
            value, residual = (v if math.isfinite(v) else None for v in (curvature.value, curvature.residual))
            self._log.curvatures.append((value, residual, self._log.step))

    def _moment_gradient(self) -> Tensor:
        if self._gradient == "epoch_mean":
            if self._log.steps_summed == 0:
                raise InputError(
                    "There was no optimizer step since the last call of record(). Call it after an epoch of steps of "
                    'the optimizer that the Recorder was given, or use gradient="probe".'
                )
            if self._log.steps_summed == 1 and self._log.moments:
                self._warn(
                    "single steps",
                    "There was only one step between two calls of record(), so the gradient of a moment is not that at "
                    "its parameters, and slopes between moments are wrong. Call record() after several steps, or use "
                    'gradient="probe" with the training examples as the probe.',
                )
            return self._gradient_sum / self._log.steps_summed
        total = zeros(self._projection)
        for _, loss in self._probe.evaluations(self._model):
            total += project_gradient(self._projection, self._parameters, loss)
        return total


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
        raise InputError("The optimizer has none of the model's parameters. Create it from model.parameters().")
    return updated


def _columns(rows: Sequence[tuple[float | None, ...]], *names: str) -> dict[str, Any]:
    """The columns of a table by name; numbers of steps are integers."""
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(names)).T
    return {
        name: column.astype(np.int64) if name.endswith("steps") else column
        for name, column in zip(names, columns, strict=True)
    }
