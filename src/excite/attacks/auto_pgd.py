"""Auto-PGD (Croce & Hein 2020): PGD with momentum, whose step is halved for examples whose loss stalls."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import FastModel, fast_inference, output_tolerance
from excite.attacks.geometry import Norm, ascent, length, per_image, project
from excite.attacks.projected_gradient import cross_entropy, dlr, loss_and_gradient, margin, targeted_dlr
from excite.attacks.protocol import (
    Attack,
    AttackWarning,
    check_inputs,
    check_labels,
    check_options,
    in_words,
    right_answers,
)
from excite.randomness import drawing_from

Variant = Literal["apgd-ce", "apgd-dlr", "apgd-t"]

MOST_TARGETS: dict[Norm, int] = {"linf": 9, "l2": 9, "l1": 5}
MOMENTUM = 0.25
ENOUGH_RISES = 0.75  # ρ in the paper: the share of steps on which the loss must have risen since the last checkpoint


@dataclasses.dataclass(frozen=True)
class APGD(Attack):
    """APGD on the cross-entropy, on the DLR loss, or on the targeted DLR loss for the likeliest classes in turn.

    Every run starts at a new random point, with the examples that withstood the runs before. Examples leave the batch
    when they are misclassified; that does not affect the others, whose paths depend on their own losses alone. With
    averaged gradients no example leaves, because one wrong answer of a random model means little.

    In an L1 ball (Croce & Hein 2021) every run passes through balls of radius 3 ε and 2 ε first, without looking for
    misclassified images there, and its steps change few pixels.
    """

    variant: Variant
    eps: float
    norm: Norm = "linf"
    restarts: int = 1
    iterations: int = 100
    gradients_averaged: int = 1  # expectation over transformation, for randomized defenses
    seed: int = 0

    def __post_init__(self) -> None:
        counts = {"iterations": self.iterations, "gradients_averaged": self.gradients_averaged}
        check_options(self.eps, self.norm, seed=self.seed, restarts=self.restarts, **counts)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None = None,  # noqa: ARG002
        start: Tensor | None = None,
    ) -> Tensor:
        """Misclassified images where the attack succeeds, else those with the largest loss.

        The first run begins at `start`, if given, projected onto the ball; the others begin at random points.
        """
        check_inputs(x, y)
        x_adv = x.detach().clone()
        if len(x) == 0 or self.eps == 0:
            return x_adv
        if start is not None:
            start = project(start, x, eps=self.eps, norm=self.norm)
        fast = fast_inference(model)
        with drawing_from(self.seed, x.device), torch.no_grad():
            logits = fast(x)
            check_labels(y, logits)
            standing = right_answers(logits, y).nonzero().squeeze(1)
            highest = torch.full_like(logits[:, 0], -math.inf)
            for objective, aim in self._runs(y, logits):
                if len(standing) == 0:
                    break
                point = self._random_start(x[standing]) if start is None else start[standing]
                for eps, iterations in self._balls:
                    kind = _SparseClimbers if self.norm == "l1" else _Climbers
                    climbers = kind(point, x[standing], y[standing], aim[standing], eps=eps, norm=self.norm)
                    leave = eps == self.eps and self.gradients_averaged == 1
                    images, fooled, losses = self._climb(fast, climbers, objective, iterations, leave=leave)
                    point = climbers.best_point
                better = fooled | (losses > highest[standing])
                x_adv[standing[better]] = images[better]
                highest[standing[better]] = losses[better].to(highest)
                standing, start = standing[~fooled], None
        return x_adv

    go_on = __call__

    def passes(self, classes: int) -> float:
        runs = self.restarts * (min(MOST_TARGETS[self.norm], classes - 1) if self.variant == "apgd-t" else 1)
        return runs * self.gradients_averaged * (2 * self.iterations + 1)

    def _runs(self, y: Tensor, logits: Tensor) -> list[tuple["Objective", Tensor]]:
        """The loss of each run and its targets. DLR needs three classes, targeted DLR four."""
        classes = logits.shape[1]
        if self.variant == "apgd-ce":
            return [(cross_entropy, y)] * self.restarts
        if self.variant == "apgd-t" and classes >= 4:
            likeliest = logits.sort(dim=1).indices.flip(1)[:, 1 : MOST_TARGETS[self.norm] + 1]
            aims = [torch.stack([y, target], 1) for target in likeliest.unbind(1)]
            return [(targeted_dlr, aim) for aim in aims for _ in range(self.restarts)]
        for doubt in self.doubts(classes):
            warnings.warn(AttackWarning(doubt), stacklevel=3)
        return [(dlr, y)] * self.restarts if classes >= 3 else []

    def doubts(self, classes: int) -> list[str]:
        if self.variant != "apgd-ce" and classes < 3:
            return [f"{self.variant} needs 3 classes, the model has {classes}: it did not run."]
        if self.variant == "apgd-t" and classes < 4:
            return ["apgd-t needs 4 classes, the model has 3: apgd-dlr ran in its place."]
        return []

    @property
    def _balls(self) -> list[tuple[float, int]]:
        """The radius and the iterations of each part of a run."""
        if self.norm != "l1":
            return [(self.eps, self.iterations)]
        part = math.ceil(0.3 * self.iterations)
        return [(3 * self.eps, part), (2 * self.eps, part), (self.eps, max(0, self.iterations - 2 * part))]

    def _random_start(self, x: Tensor) -> Tensor:
        """A random point, as far from `x` as the first ball allows."""
        if self.norm == "l1":
            return project(x + torch.randn(x.shape).to(x), x, eps=self._balls[0][0], norm=self.norm)
        if self.norm == "linf":
            delta = torch.rand(x.shape).to(x) * 2 - 1
            delta = delta / per_image(delta.flatten(1).abs().amax(1), x)
        else:
            delta = torch.randn(x.shape).to(x)
            delta = delta / length(delta)
        return project(x + self.eps * delta, x, eps=self.eps, norm=self.norm)

    def _climb(
        self, model: FastModel, climbers: "_Climbers", objective: "Objective", iterations: int, *, leave: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each example's last misclassified point or else its best, whether it was fooled, its best loss."""
        images, losses = climbers.point.clone(), climbers.best_loss.clone()
        fooled = torch.zeros_like(climbers.y, dtype=torch.bool)
        last_check, checks = 0, climbers.checkpoints(iterations)
        for i in range(iterations + 1):
            if i > 0:
                climbers.move(momentum=MOMENTUM if i > 1 else 0.0)
            logits, loss, gradient = self._look(model, climbers, objective, last=i == iterations)
            wrong, number = ~right_answers(logits, climbers.y), climbers.number
            # torch.where instead of an index: with an index, the host waits for the device to count the entries.
            images[number] = torch.where(per_image(wrong, images), climbers.point, images[number])
            fooled[number] = fooled[number] | wrong
            climbers.arrive(loss, gradient, first=i == 0)
            if i in checks:
                climbers.adapt_steps(i - last_check)
                last_check = i
            if leave:
                climbers.keep(~_clearly_wrong(logits, climbers.y))
                if len(climbers.y) == 0:
                    break
        number = climbers.number
        images[number] = torch.where(per_image(fooled[number], images), images[number], climbers.best_point)
        losses[number] = climbers.best_loss.to(losses)
        return images, fooled, losses

    def _look(
        self, model: FastModel, climbers: "_Climbers", objective: "Objective", *, last: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients = torch.zeros_like(climbers.x)
        for _ in range(self.gradients_averaged):
            logits, loss, gradient = loss_and_gradient(model, climbers.point, climbers.aim, objective, last=last)
            if gradient is not None:
                gradients += gradient / self.gradients_averaged
        return logits, loss, gradients

    def __str__(self) -> str:
        return f"{self.variant.upper()}, {in_words(self.eps, self.norm)}"


Objective = Callable[[Tensor, Tensor], Tensor]


class _Climbers:
    """The examples that are still attacked; every tensor has one entry per example."""

    def __init__(self, start: Tensor, x: Tensor, y: Tensor, aim: Tensor, *, eps: float, norm: Norm) -> None:
        zeros = x.new_zeros(len(x))
        self.eps, self.norm = eps, norm
        self.number = torch.arange(len(x), device=x.device)  # in the batch that the climb began with
        self.x, self.y = x, y
        self.aim = aim  # what the objective compares the logits with
        self.point = self.before = self.best_point = start  # `before` is the point one step ago
        self.gradient = self.best_gradient = torch.zeros_like(x)
        self.step = zeros + 2 * eps
        self.loss = zeros  # at the point; the first loss is compared with zero, as in the authors' code
        self.best_loss = self.checked_loss = zeros - math.inf  # so far, and at the last checkpoint
        self.halved = zeros != 0  # whether the step was halved at the last checkpoint
        self.rises = zeros  # of the loss, since the last checkpoint

    @staticmethod
    def checkpoints(iterations: int) -> Sequence[int]:
        """The steps after which step sizes are reconsidered, at decreasing distances, as in the paper.

        >>> _Climbers.checkpoints(100)
        [22, 41, 57, 70, 80, 87, 93, 99]
        """
        distance, decrease, least = (max(int(share * iterations), 1) for share in (0.22, 0.03, 0.06))
        steps, step = [], distance
        while step <= iterations:
            steps.append(step)
            distance = max(distance - decrease, least)
            step += distance
        return steps

    def keep(self, chosen: Tensor) -> None:
        numbers = chosen.nonzero().squeeze(1)  # the only place in an iteration where the host waits for the device
        if len(numbers) < len(chosen):
            for name, values in list(vars(self).items()):
                if isinstance(values, Tensor):
                    setattr(self, name, values[numbers])

    def move(self, *, momentum: float) -> None:
        ahead = self.point + per_image(self.step, self.x) * ascent(self.gradient, norm=self.norm)
        ahead = project(ahead, self.x, eps=self.eps, norm=self.norm)
        moved = self.point + (ahead - self.point) * (1 - momentum) + (self.point - self.before) * momentum
        self.before, self.point = self.point, project(moved, self.x, eps=self.eps, norm=self.norm)

    def arrive(self, loss: Tensor, gradient: Tensor, *, first: bool) -> None:
        """Record loss and gradient at the current point."""
        better = loss > self.best_loss
        self.gradient = gradient
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_point = torch.where(per_image(better, self.x), self.point, self.best_point)
        self.best_gradient = torch.where(per_image(better, self.x), gradient, self.best_gradient)
        if not first:
            self.rises = self.rises + (loss > self.loss)
            self.loss = loss

    def adapt_steps(self, taken: int) -> None:
        """Halve the step and return to the best point where the loss rose too rarely or its best did not improve."""
        unmoved = ~self.halved & (self.checked_loss >= self.best_loss)
        self.halved = (self.rises <= ENOUGH_RISES * taken) | unmoved
        self.checked_loss, self.rises = self.best_loss, torch.zeros_like(self.rises)
        self.step = torch.where(self.halved, self.step / 2, self.step)
        self.go_back(self.halved)

    def go_back(self, chosen: Tensor) -> None:
        """Return the chosen examples to their best point."""
        self.point = torch.where(per_image(chosen, self.x), self.best_point, self.point)
        self.gradient = torch.where(per_image(chosen, self.x), self.best_gradient, self.gradient)


class _SparseClimbers(_Climbers):
    """Examples in an L1 ball: their steps have no momentum and change about as many pixels as helped so far."""

    def __init__(self, start: Tensor, x: Tensor, y: Tensor, aim: Tensor, *, eps: float, norm: Norm) -> None:
        super().__init__(project(start, x, eps=eps, norm=norm), x, y, aim, eps=eps, norm=norm)
        self.step = self.step / 2
        self.changed = self._n_changed()

    @staticmethod
    def checkpoints(iterations: int) -> Sequence[int]:
        distance = max(int(0.04 * iterations), 1)
        return range(distance, iterations + 1, distance)

    def move(self, *, momentum: float) -> None:  # noqa: ARG002
        share = self.changed / self.x[0].numel() / 1.5
        ahead = self.point + per_image(self.step, self.x) * ascent(self.gradient, norm=self.norm, share=share)
        self.point = project(ahead, self.x, eps=self.eps, norm=self.norm)

    def adapt_steps(self, taken: int) -> None:  # noqa: ARG002
        """Begin again with a long step from the best point where it has become sparser; else shorten the step."""
        changed = self._n_changed()
        sparser = changed / self.changed < 0.95
        self.step = torch.where(sparser, self.eps, (self.step / 1.5).clamp_min(self.eps / 10))
        self.changed = changed
        self.go_back(sparser)

    def _n_changed(self) -> Tensor:
        return (self.best_point != self.x).flatten(1).sum(1)


def _clearly_wrong(logits: Tensor, y: Tensor) -> Tensor:
    """Misclassified by more than the fast model may differ from the plain model, whose answer counts."""
    clear: Tensor = margin(logits, y) > 2 * output_tolerance(y.device) * torch.linalg.vector_norm(logits, dim=1)
    return clear
