"""On a linear model the distance to the nearest wrong answer is known: attacks succeed beyond it and nowhere below."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks.geometry import Norm, distance, p_norm
from excite.errors import InputError
from excite.evaluation import evaluate

DUAL = {"linf": 1, "l2": 2, "l1": torch.inf}


GRAY = torch.full((3, 3, 8, 8), 0.5)  # far from black and white
TWO, FOUR = (0.0, 0.03, 9.0, 9.0), (0.0, 0.03, 0.04, 0.05)  # gaps between the logits; of TWO, two classes compete


def linear(gaps: tuple[float, ...]) -> nn.Sequential:
    """Answers class 0 for a gray image; the other logits are lower by `gaps`."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        layer = nn.Linear(3 * 8 * 8, 4)
        layer.bias.copy_(layer.bias - layer(GRAY.flatten(1))[0] - torch.tensor(gaps))
    return nn.Sequential(nn.Flatten(), layer)


def weights(model: nn.Sequential) -> Tensor:
    return next(model.parameters()).detach()


def distances(model: nn.Sequential, norm: Norm, x: Tensor = GRAY) -> Tensor:
    """From class 0 to each other class: the gap between the logits over the dual norm of the difference of weights."""
    with torch.no_grad():
        logits: Tensor = model(x)
    slopes = p_norm(weights(model)[:1] - weights(model)[1:], DUAL[norm])
    return (logits[:, :1] - logits[:, 1:]) / slopes


def answers(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        labels: Tensor = model(x).argmax(1)
    return labels


ATTACKS: dict[str, dict[str, Any]] = {
    "pgd": {},
    "pgd to 3 targets": {"targets": 3},
    "pgd to 3 targets, margin": {"targets": 3, "loss": "margin"},
    "apgd-ce": {"iterations": 20},
    "apgd-dlr": {"iterations": 20},
    "apgd-t": {"iterations": 20},
    "fmn": {"steps": 30},
}


@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("name", ATTACKS)
def test_the_exact_distance_decides(name: str, norm: Norm) -> None:
    model, x = linear(TWO), GRAY[:1]
    y, exact = answers(model, x), float(distances(model, norm).min())
    for factor, fooled in ((0.99, False), (1.1, True)):
        attack = attacks.create(name.split(maxsplit=1)[0], eps=factor * exact, norm=norm, **ATTACKS[name])
        assert (answers(model, attack(model, x, y)) != y).item() == fooled


@pytest.mark.parametrize("norm", get_args(Norm))
def test_fmn_finds_the_exact_distance(norm: Norm) -> None:
    model, y = linear(FOUR), torch.tensor([0, 0, 1])  # the last is wrong without a perturbation
    exact = distances(model, norm).amin(1).double() * torch.tensor([1, 1, 0])
    nearest, found = attacks.fmn(model, GRAY, y, norm=norm)
    assert (answers(model, nearest) != y).all()
    torch.testing.assert_close(found, distance(nearest, GRAY, norm=norm))
    assert (found >= exact * (1 - 1e-3)).all()
    assert (found <= exact * 1.02).all()


def test_fmn_says_where_it_found_nothing() -> None:
    layer, y = nn.Linear(192, 3), torch.zeros(3, dtype=torch.long)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    constant = nn.Sequential(nn.Flatten(), layer)
    nearest, found = attacks.fmn(constant, GRAY, y, steps=5)
    assert torch.equal(nearest, GRAY)
    assert found.isinf().all()
    with pytest.raises(InputError, match="linf"):
        attacks.fmn(constant, GRAY, y, norm="l0")  # type: ignore[arg-type]


def test_a_curve_of_fmn_takes_one_run() -> None:
    model = linear(TWO)
    direction = weights(model)[0] - weights(model)[1]
    nearer = torch.tensor([0.0, 0.01, 0.02])[:, None] * direction / direction.square().sum()  # lowers the gap by that
    x, y = GRAY - nearer.reshape(GRAY.shape), torch.zeros(3, dtype=torch.long)
    exact = distances(model, "l2", x).amin(1)
    radii = [1.05 * float(radius) for radius in exact.flip(0)]
    result = evaluate(model, x, y, attacks.create("fmn", eps=radii, norm="l2"), checks=False)
    (attack,) = result.attacks.values()
    assert attack.curve is not None
    assert [accuracy.correct for accuracy in attack.curve.accuracies] == [2, 1, 0]
    assert attack.cost.backwards < 2 * 100 * 3


@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("loss", ["cross_entropy", "margin"])
def test_a_target_per_image_is_reached_beyond_its_distance(norm: Norm, loss: Any) -> None:
    model, y, targets = linear(FOUR), torch.zeros(3, dtype=torch.long), torch.tensor([1, 2, 3])
    options: dict[str, Any] = {"norm": norm, "steps": 60, "targets": targets, "loss": loss}
    exact = distances(model, norm).diagonal()
    far, near = 2 * float(exact.max()), 0.99 * float(exact.min())
    reached = attacks.pgd(model, GRAY, y, eps=far, **options)
    assert torch.equal(answers(model, reached), targets)
    assert distance(reached, GRAY, norm=norm).max() <= far + 1e-6
    assert not (answers(model, attacks.pgd(model, GRAY, y, eps=near, **options)) == targets).any()


def test_every_other_class_in_turn_is_as_strong_as_each_of_them(
    convnet: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """A plain loop over targets fools the same images, or more where one attack passes another wrong class."""
    options: dict[str, Any] = {"eps": 0.008, "step": 0.002, "steps": 10}
    by_hand = torch.zeros(len(images), dtype=torch.bool)
    for target in range(10):
        targets = torch.where(labels == target, (target + 1) % 10, target)
        by_hand |= answers(convnet, attacks.pgd(convnet, images, labels, targets=targets, **options)) != labels
    attack = attacks.create("pgd", targets=9, **options)
    fooled = answers(convnet, attack(convnet, images, labels)) != labels
    assert (fooled | ~by_hand).all()
    assert 0 < fooled.sum() < len(images)
    few = answers(convnet, attacks.create("pgd", targets=1, **options)(convnet, images, labels)) != labels
    assert not (few & ~fooled).any()
    assert str(attack).endswith("9 targets")


@pytest.mark.parametrize("loss", ["kl", "dlr"])
@pytest.mark.parametrize("targets", [2, torch.tensor([1, 2, 3])])
def test_a_loss_that_does_not_lead_to_targets_is_refused(targets: Any, loss: Any) -> None:
    y = torch.zeros(3, dtype=torch.long)
    with pytest.raises(InputError, match="margin"):
        attacks.pgd(linear(FOUR), GRAY, y, eps=0.1, loss=loss, targets=targets, random_start=True)


@pytest.mark.parametrize("targets", [0, 100, torch.zeros(3), torch.zeros(2, dtype=torch.long)])
def test_wrong_targets_are_refused(targets: Any) -> None:
    with pytest.raises(InputError, match="targets"):
        attacks.pgd(linear(FOUR), GRAY, torch.zeros(3, dtype=torch.long), eps=0.1, targets=targets)


@pytest.mark.parametrize("norm", get_args(Norm))
def test_fmn_is_as_near_as_foolboxs(norm: Norm, convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    foolbox = pytest.importorskip("foolbox")
    kind = {"linf": "LInfFMNAttack", "l2": "L2FMNAttack", "l1": "L1FMNAttack"}[norm]
    theirs = getattr(foolbox.attacks, kind)(steps=100)(
        foolbox.PyTorchModel(convnet, bounds=(0, 1)), images, labels, epsilons=None
    )[1]
    succeeded = answers(convnet, theirs) != labels
    _, ours = attacks.fmn(convnet, images, labels, norm=norm)
    ratio = (ours / distance(theirs, images, norm=norm))[succeeded]
    assert succeeded.sum() > 20
    assert ours.isfinite().all()
    assert ratio.quantile(0.9) < 1.05
    assert norm == "l2" or ratio.median() > 0.95  # foolbox's L2 attack does not project onto its ball
