"""What the gradient of a batch is on average, and how much it varies, measured at moments on examples drawn anew.

The examples must be independent of the run: the batches that SGD trains on move the end of the run, θ*, so that
⟨g, θ − θ*⟩ is larger for them than for other batches. From n batches with mean gradient ḡ, the sample
variance s² = Σ‖g − ḡ‖²/(n − 1) estimates tr(Σ)/b without bias, and ‖ḡ‖² − s²/n estimates ‖∇l‖².
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from excite.errors import InputError
from excite.randomness import derive_seed, device_of, seed_all, undisturbed
from excite.trace.moments import Projection, Vectors, inner_product, project, project_gradient, zeros
from excite.trace.probe import Probe

Draw = Callable[[int], tuple[Tensor, Tensor]]  # moment -> (x, y), training examples that are drawn anew


class BatchStatistics(NamedTuple):
    """One moment θ. ∇l includes weight decay, `carry` is the part of SGD's next update that momentum decides.

    The update is η(a g + c) with a = 1 and c = βv for momentum β and its buffer v, and with a = 1 + β and c = β²v for
    Nesterov's. Without momentum c = 0.
    """

    squared_gradient: float  # ‖∇l‖²
    noise: float  # tr(Σ) of a single example: a batch of B has tr(Σ)/B
    gradient_carry: float  # ⟨∇l, c⟩
    squared_carry: float  # ‖c‖²
    gradient_ahead: float = 0.0  # ⟨∇l, θ − θ*⟩
    carry_ahead: float = 0.0  # ⟨c, θ − θ*⟩


@dataclass(eq=False)
class BatchNoise:
    """Measures `BatchStatistics` at moments; keeps a vector per moment until θ* is known, with momentum two."""

    model: nn.Module
    parameters: list[Tensor]
    projection: Projection
    optimizer: Optimizer | None
    draw: Draw
    make_probe: Callable[[Tensor, Tensor, int], Probe]  # (x, y, batch size)
    batch_size: int
    seed: int
    folder: Path | None

    def __post_init__(self) -> None:
        self._optimizer = _plain_sgd(self.optimizer)
        self._measured: list[BatchStatistics] = []
        self._gradients = Vectors("mean_gradients", folder=self.folder)
        self._carries = Vectors("carries", folder=self.folder)

    @property
    def facts(self) -> dict[str, float | bool]:
        group = self._optimizer.param_groups[0]
        return {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}

    def measure(self, moment: int) -> None:
        """Measure at the present parameters, which the recorder keeps as moment number `moment`."""
        batches = self._batches(moment)
        decay = project(self.projection, self._per_parameter(lambda p, group: group["weight_decay"] * p.detach()))
        total, squares, count = zeros(self.projection), 0.0, len(batches.batches)
        for _, share_of_loss in batches.evaluations(self.model):
            gradient = project_gradient(self.projection, self.parameters, share_of_loss).mul_(count).add_(decay)
            squares += _dot(gradient, gradient)
            total += gradient
        mean = total / count
        self._gradients.append(mean)
        squared = _dot(mean, mean)
        variance = max(squares - count * squared, 0.0) / (count - 1)
        carry = project(self.projection, self._per_parameter(self._carry))
        if self.facts["momentum"]:
            self._carries.append(carry)
        self._measured.append(
            BatchStatistics(
                squared_gradient=squared - variance / count,
                noise=variance * len(batches.x) / count,
                gradient_carry=_dot(mean, carry),
                squared_carry=_dot(carry, carry),
            )
        )

    def rows(self, parameters: Vectors) -> list[BatchStatistics]:
        """The statistics so far; the last moment is θ*."""
        rows = []
        for index, row in enumerate(self._measured):
            here, end = parameters[index], parameters[-1]
            ahead = inner_product(self._gradients[index], here, end)
            carried = inner_product(self._carries[index], here, end) if len(self._carries) else 0.0
            rows.append(row._replace(gradient_ahead=ahead, carry_ahead=carried))
        return rows

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        (gradients, gradient_facts), (carries, carry_facts) = self._gradients.state(), self._carries.state()
        rows = torch.tensor(self._measured, dtype=torch.float64).reshape(-1, len(BatchStatistics._fields))
        tensors = {"batch_statistics": rows} | gradients | carries
        return tensors, {"gradients": gradient_facts, "carries": carry_facts}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._gradients.restore(tensors, facts["gradients"])
        self._carries.restore(tensors, facts["carries"])
        self._measured = [BatchStatistics(*row) for row in tensors["batch_statistics"].tolist()]

    def _batches(self, moment: int) -> Probe:
        seed, device = derive_seed(self.seed, moment) % 2**32, device_of(self.model)
        with undisturbed(self.model, device):
            seed_all(seed, device)
            x, y = self.draw(moment)
        if len(x) < 2:
            raise InputError(f"`draw` gave {len(x)} examples; the noise of a batch needs at least 2.")
        count = max(2, len(x) // self.batch_size)
        used = len(x) // count * count  # batches of one size
        return replace(self.make_probe(x[:used], y[:used], used // count), seed=seed)

    def _per_parameter(self, value: Callable[[Tensor, dict[str, Any]], Tensor | None]) -> list[Tensor | None]:
        groups = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        moving = [parameter if parameter.requires_grad else None for parameter in self.parameters]
        return [None if parameter is None else value(parameter, groups[id(parameter)]) for parameter in moving]

    def _carry(self, parameter: Tensor, group: dict[str, Any]) -> Tensor | None:
        buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
        return None if buffer is None else buffer * group["momentum"] ** (1 + group["nesterov"])


def _dot(a: Tensor, b: Tensor) -> float:
    return inner_product(a.cpu().numpy(), b.cpu().numpy())


def _plain_sgd(optimizer: Optimizer | None) -> SGD:
    """The optimizer, if it is SGD, whose update is known in closed form, with one rate and momentum for all layers."""
    if not isinstance(optimizer, SGD):
        raise InputError("The noise of batches is measured for torch.optim.SGD. Pass it, or leave `draw` out.")
    settings = {(group["lr"], group["momentum"], group["nesterov"]) for group in optimizer.param_groups}
    if len(settings) > 1 or any(group["dampening"] or group["maximize"] for group in optimizer.param_groups):
        raise InputError(
            "The noise of batches is measured for SGD with one learning rate and momentum for all parameters, without "
            "dampening or maximize. Use such an optimizer, or leave `draw` out."
        )
    return optimizer
