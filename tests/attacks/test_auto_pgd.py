"""Our APGD beside the package's: the same images while nobody leaves, the same verdicts when the fooled do."""

import dataclasses
from typing import Any, get_args

import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from torch import Tensor, nn

from excite.attacks import fast_inference
from excite.attacks.auto_pgd import APGD, Variant, _clearly_wrong, _Climbers
from excite.attacks.geometry import Norm, distance

EPS: dict[Norm, float] = {"linf": 0.01, "l2": 0.12, "l1": 1.2}


class Exact(nn.Module):
    """In double precision, so that rounding does not part the two on their way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x.double())
        return logits


def package(attack: APGD, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    options: dict[str, Any] = {
        "eps": attack.eps,
        "norm": attack.norm.capitalize(),
        "use_largereps": attack.norm == "l1",
        "n_iter": attack.iterations,
        "n_restarts": attack.restarts,
        "seed": attack.seed,
    }
    if attack.variant == "apgd-t":
        direct = APGDAttack_targeted(model, n_target_classes=5 if attack.norm == "l1" else 9, **options)
    else:
        direct = APGDAttack(model, loss=attack.variant.removeprefix("apgd-"), **options)
    with torch.random.fork_rng(), torch.no_grad():
        x_adv: Tensor = direct.perturb(x, y)
    return x_adv


@pytest.mark.parametrize("effort", [{"iterations": 1}, {"iterations": 3, "restarts": 2}, {"iterations": 20}], ids=str)
@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("variant", get_args(Variant))
def test_the_packages_way(variant: Variant, norm: Norm, effort: dict[str, int], convnet: nn.Module) -> None:
    """In L1 the package counts rounding errors as changed pixels, so that short runs differ."""
    if norm == "l1" and effort["iterations"] <= 3:
        return
    model = Exact(convnet)
    images = torch.rand(30, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(images).argmax(1)
    attack = APGD(variant, EPS[norm], norm, seed=3, **effort)
    theirs = package(attack, model, images, labels)
    nobody_leaves = dataclasses.replace(attack, gradients_averaged=2)
    ours, left = nobody_leaves(model, images, labels, None), attack(model, images, labels, None)
    with torch.no_grad():
        fooled = model(theirs).argmax(1) != labels
        assert 0 < fooled.sum() < len(images)
        assert torch.equal(model(ours).argmax(1) != labels, fooled)
        assert torch.equal(model(left).argmax(1) != labels, fooled)
    if (
        attack.iterations <= 3
    ):  # later, rounding moves some pixel across a kink of the network, and the paths part a little
        torch.testing.assert_close(ours[fooled], theirs[fooled], rtol=0, atol=1e-5)


def test_whoever_is_fooled_leaves(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    fast = fast_inference(convnet)
    attack = APGD("apgd-ce", 0.2)
    x_adv = attack(fast, images, labels, None)
    with torch.no_grad():
        assert (convnet(x_adv).argmax(1) != labels).all()
    assert fast.backwards < len(images) * attack.iterations / 10


def test_checkpoints_come_closer() -> None:
    assert _Climbers.checkpoints(10) == list(range(2, 11))
    assert _Climbers.checkpoints(1) == [1]


def climbed(first_loss: float, *windows: list[float]) -> _Climbers:
    """One example with a step of 1 after these losses, at the points 0, 1, 2 …; a checkpoint follows each window."""
    x = torch.zeros(1, 1)
    climbers = _Climbers(x, x, x, x, eps=0.5, norm="linf")
    climbers.arrive(torch.tensor([first_loss]), x, first=True)
    for losses in windows:
        for loss in losses:
            climbers.point = climbers.point + 1
            climbers.arrive(torch.tensor([loss]), 2 * climbers.point, first=False)
        climbers.adapt_steps(len(losses))
    return climbers


@pytest.mark.parametrize(
    ("first_loss", "windows", "step", "point"),
    [
        (0.0, [[1.0, 2.0, 3.0, 2.5]], 0.5, 3),  # it rose on three of four steps
        (0.0, [[1.0, 2.0, 3.0, 3.0]], 0.5, 3),
        (0.0, [[1.0, 2.0, 3.0, 4.0]], 1.0, 4),
        (-1.0, [[-5.0, -4.0, -3.0, -2.5, -2.0]], 1.0, 5),  # on four of five; the first checkpoint asks for no record
        (0.0, [[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 1.0, 2.0, 3.0]], 0.5, 4),  # the second one does,
        (0.0, [[1.0, 2.0, 3.0, 2.5], [-1.0, 0.0, 1.0, 2.0, 2.75]], 0.5, 8),  # unless the first one halved the step
        (0.0, [[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 5.0]], 0.5, 8),
    ],
)
def test_the_step_is_halved_where_the_loss_stalls(
    first_loss: float, windows: list[list[float]], step: float, point: int
) -> None:
    found = climbed(first_loss, *windows)
    assert (found.step.item(), found.point.item(), found.gradient.item()) == (step, point, 2 * point)


@pytest.mark.parametrize("given", [False, True])
def test_an_example_that_withstands_is_moved_to_the_largest_loss_of_all_restarts(
    convnet: nn.Module, images: Tensor, labels: Tensor, given: bool
) -> None:
    """The second restart begins at a random point, even where the first one was given."""
    once, start = APGD("apgd-ce", 1e-3, iterations=2), images if given else None
    runs = [attack(convnet, images, labels, None, start) for attack in (once, dataclasses.replace(once, restarts=2))]
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(convnet(x), labels, reduction="none") for x in (images, *runs)]
    clean, after_one, after_two = losses
    assert (after_one > clean).all()
    assert (after_two >= after_one).all()
    assert (after_two > after_one).any()


@pytest.mark.parametrize("norm", get_args(Norm))
def test_a_random_start_is_as_far_away_as_the_ball_allows(norm: Norm) -> None:
    x = torch.full((4, 1, 3, 3), 0.5)
    far = distance(APGD("apgd-ce", 0.1, norm)._random_start(x), x, norm=norm)
    assert far.tolist() == pytest.approx([0.3 if norm == "l1" else 0.1] * 4, rel=1e-4)


def test_an_example_that_rounding_may_have_fooled_stays() -> None:
    logits = torch.tensor([[1.0, 1.0 + 1e-6], [0.0, 1.0], [1.0, 0.0]])
    assert _clearly_wrong(logits, torch.zeros(3, dtype=torch.long)).tolist() == [False, True, False]
