"""A fixed set of examples on which the same loss can be looked at again and again, as training sees it.

The model is evaluated in train mode, in equal batches of about the training batch size: batch-norm then uses batch
statistics, which is the function that SGD descends. Random parts (dropout) are the same at every evaluation. Under an
adversarial objective a look begins by finding the perturbations, and every evaluation is at those.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.objectives.protocol import Objective, frozen
from excite.randomness import seed_all, undisturbed
from excite.registry import with_named_options

__all__ = ["Loss", "Objective", "Probe", "input_gradient"]

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, targets) -> one number or one per example


@with_named_options
@dataclass(frozen=True, eq=False)
class Probe:
    """Examples `x` with targets `y` (labels or soft labels) and what is minimised on them.

    `objective(model, x, y)`, where given, replaces `loss(model(x), y)`: for adversarial training. The batches are
    as many as make them nearest to `batch_size` and differ by one example at most; every example counts alike.
    """

    x: Tensor
    y: Tensor
    batch_size: int = 128
    loss: Loss = cross_entropy
    objective: Objective | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.x) == 0 or len(self.x) != len(self.y) or self.batch_size < 1:
            raise InputError(
                f"A probe needs as many targets as examples and a positive batch size, not {len(self.y)} for "
                f"{len(self.x)} in batches of {self.batch_size}."
            )

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        count = max(1, round(len(self.x) / self.batch_size))
        return list(zip(self.x.tensor_split(count), self.y.tensor_split(count), strict=True))

    def evaluations(self, model: nn.Module) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
        """The examples of each batch and a function that gives their share of the mean loss, for one look."""
        with as_in_training(model):
            yield from self._shares(model)

    def held(self, model: nn.Module) -> list[Callable[[], Tensor]]:
        """Each batch's share of the mean loss, at perturbations found now, to be called `as_in_training`."""
        with as_in_training(model):
            return [share for _, share in self._shares(model)]

    def _shares(self, model: nn.Module) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
        device = next(model.parameters()).device
        for index, (x, y) in enumerate(self.batches):
            inputs, targets = x.to(device).detach(), y.to(device)
            seed_all(self.seed + index, device)
            loss = frozen(self.objective or self._plain, model, inputs, targets)

            def share(
                index: int = index, loss: Callable[[], Tensor] = loss, part: float = len(x) / len(self.x)
            ) -> Tensor:
                seed_all(self.seed + index, device)
                return part * loss().mean()

            yield inputs, share

    def _plain(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(model(x), y)


@contextlib.contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Train mode inside, but for layers that a loop keeps in eval mode; afterwards everything is as it was."""
    with undisturbed(model, next(model.parameters()).device):
        if not model.training:
            model.train()
        yield


def input_gradient(model: nn.Module, probe: Probe) -> Tensor:
    """The released code's gradient: with respect to pixels, averaged over a batch whose loss is an average already."""
    total = torch.zeros(probe.x[0].numel())
    for inputs, loss in probe.evaluations(model):
        inputs.requires_grad_(True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(), inputs)
        total += gradient.mean(0).reshape(-1).cpu()
    return total
