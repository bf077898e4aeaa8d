"""foolbox's attacks, the real ones: their verdicts are ours, at one radius or several, and a seed repeats them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excite.attacks.given import FromFoolbox
from excite.errors import InputError
from excite.evaluation import Evaluation, evaluate

foolbox = pytest.importorskip("foolbox")
EPS = 8 / 255


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(24, 1, 4, 4, generator=generator)
    linear = nn.Linear(16, 3, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(3, 16, generator=generator))
    model = nn.Sequential(nn.Flatten(), linear).eval()
    return model, x, model(x).argmax(1)


def judged(attack: Any, eps: Any = EPS, **options: Any) -> Evaluation:
    return evaluate(*problem(), attack, eps=eps, batch_size=8, checks=False, **options)


def test_one_step_is_our_fgsm() -> None:
    theirs = judged(foolbox.attacks.LinfFastGradientAttack())
    assert 0 < sum(theirs.outcomes("worst")) < 24
    assert theirs.outcomes("worst").tolist() == judged("fgsm").outcomes("worst").tolist()


@pytest.mark.parametrize(
    ("make", "norm"),
    [
        (foolbox.attacks.LinfPGD, "linf"),
        (foolbox.attacks.LinfDeepFoolAttack, "linf"),
        (foolbox.attacks.L2PGD, "l2"),
        (lambda: foolbox.attacks.L2CarliniWagnerAttack(steps=20), "l2"),
        (lambda: foolbox.attacks.BoundaryAttack(steps=5), "l2"),
        (lambda: foolbox.attacks.SaltAndPepperNoiseAttack(steps=5), "l2"),
    ],
    ids=["PGD", "DeepFool", "L2 PGD", "Carlini and Wagner", "Boundary", "salt and pepper"],
)
def test_each_kind_knows_its_ball_and_stays_in_it(make: Any, norm: str) -> None:
    attack = FromFoolbox(make(), 0.3)
    assert attack.norm == norm
    (name,) = judged(make(), eps=0.3).attacks  # which checks the ball of every image
    assert name == str(attack)
    assert name.startswith(f"foolbox {type(attack.attack).__name__}(")


def test_the_seed_decides_and_torchs_own_generator_is_left_alone() -> None:
    noise = FromFoolbox(foolbox.attacks.L2AdditiveGaussianNoiseAttack(), 1.0)
    model, x, y = problem()
    state = torch.get_rng_state()
    first, again, other = (noise(model, x, y, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_several_radii_are_a_curve() -> None:
    attack = foolbox.attacks.LinfPGD()
    (curve,) = judged(attack, eps=["2/255", "8/255", "32/255"]).curves.values()
    values = [accuracy.value for accuracy in curve.accuracies]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_options_are_told_apart_in_a_journal() -> None:
    few, many = (str(FromFoolbox(foolbox.attacks.LinfPGD(steps=steps), EPS)) for steps in (2, 40))
    assert few != many


@pytest.mark.parametrize(
    ("attack", "eps", "cure"),
    [
        (foolbox.attacks.LinfPGD, EPS, "class"),
        (foolbox.attacks.LinfPGD(), None, "eps"),
        (foolbox.attacks.LinfPGD(), 8, "8/255"),
    ],
)
def test_what_cannot_be_is_refused(attack: Any, eps: Any, cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        judged(attack, eps)
