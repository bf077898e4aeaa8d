"""What an attack makes large: one number per example, from its logits and a target."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

LossName = Literal["cross_entropy", "margin", "dlr", "kl"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """The best wrong logit minus the right one: positive exactly where the example is misclassified."""
    right = logits.gather(1, y[:, None]).squeeze(1)
    wrong = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return wrong - right


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The margin over the spread between the first and third logit (Croce & Hein 2020): blind to the logits' scale."""
    largest = logits.topk(3, dim=1).values
    return margin(logits, y) / (largest[:, 0] - largest[:, 2] + 1e-12)


def targeted_dlr(logits: Tensor, right_and_target: Tensor) -> Tensor:
    """The target's logit minus the right one, over the spread of the first, third and fourth (Croce & Hein 2020)."""
    right, target = logits.gather(1, right_and_target).unbind(1)
    largest = logits.topk(4, dim=1).values
    return (target - right) / (largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2 + 1e-12)


def kl(logits: Tensor, clean_log_probabilities: Tensor) -> Tensor:
    """KL(p(x) ‖ p(x_adv)), the inner loss of TRADES; labels play no part."""
    log_probabilities = functional.log_softmax(logits, dim=1)
    return functional.kl_div(log_probabilities, clean_log_probabilities, reduction="none", log_target=True).sum(1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "kl": kl,
}
