"""A fixed set of examples on which the same loss can be looked at again and again, as training sees it.

The model is evaluated in train mode, in whole batches of the training batch size: batch-norm then uses batch
statistics, which is the function that SGD descends. Random parts (dropout) are the same at every evaluation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.trace.undisturbed import seed_all, undisturbed

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, targets) -> one number or one per example
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (model, x, y) -> likewise


@dataclass(frozen=True, eq=False)
class Probe:
    """Examples `x` with targets `y` (labels or soft labels) and what is minimised on them.

    `objective(model, x, y)`, where given, replaces `loss(model(x), y)`: for adversarial training. What is left over
    after whole batches is not used; a probe smaller than a batch is one batch.
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
        size = min(self.batch_size, len(self.x))
        return [(self.x[i : i + size], self.y[i : i + size]) for i in range(0, len(self.x) - size + 1, size)]

    def evaluations(self, model: nn.Module) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
        """The examples of each batch and a function that gives their share of the mean loss."""
        device = next(model.parameters()).device
        batches = self.batches
        with undisturbed(model, device):
            model.train()
            for index, (x, y) in enumerate(batches):
                inputs, targets = x.to(device).detach(), y.to(device)

                def value(index: int = index, inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                    seed_all(self.seed + index, device)
                    if self.objective is not None:
                        return self.objective(model, inputs, targets).mean() / len(batches)
                    return self.loss(model(inputs), targets).mean() / len(batches)

                yield inputs, value
