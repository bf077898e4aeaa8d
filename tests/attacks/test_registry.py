"""Attacks by name."""

import inspect
import math
import pkgutil
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks.geometry import Norm, distance
from excite.errors import InputError

NAMES: dict[str, tuple[dict[str, Any], str]] = {
    "pgd": ({"eps": 8 / 255, "step": 2 / 255, "random_start": True, "restarts": 5}, "PGD-20, L∞ ε = 8/255, step 2/255"),
    "fgsm": ({"eps": "8/255"}, "PGD-1, L∞ ε = 8/255, step 8/255"),
    "autoattack": ({"eps": 8 / 255}, "AutoAttack (standard), L∞ ε = 8/255"),
    "apgd-ce": ({"eps": 0.5, "norm": "l2", "iterations": 3}, "APGD-CE, L2 ε = 0.5"),
    "apgd-dlr": ({"eps": 1 / 255, "iterations": 3}, "APGD-DLR, L∞ ε = 1/255"),
    "apgd-t": ({"eps": 1 / 255, "iterations": 3}, "APGD-T, L∞ ε = 1/255"),
    "fab": ({"eps": 1 / 255, "iterations": 3}, "FAB, L∞ ε = 1/255"),
    "fab-t": ({"eps": 1 / 255, "iterations": 3}, "FAB-T, L∞ ε = 1/255"),
    "square": ({"eps": 0.031, "queries": 10}, "SQUARE, L∞ ε = 0.031"),
    "fmn": ({"eps": 2.0, "norm": "l1"}, "FMN-100, L1 ε = 2"),
}


QUICK: dict[str, dict[str, Any]] = {
    "pgd": {"step": 0.01, "steps": 3, "random_start": True},
    "fgsm": {},
    "autoattack": {"members": ("apgd-ce", "fab-t", "square"), "iterations": 3, "queries": 10},
    "square": {"queries": 10},
    "fmn": {"steps": 10},
}


def test_every_attack_is_listed() -> None:
    assert set(NAMES) == set(attacks.ATTACKS)


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_says_its_name(name: str) -> None:
    options, words = NAMES[name]
    assert str(attacks.create(name, **options)).startswith(words)


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_every_attack_refuses_classes_that_the_model_lacks(name: str, convnet: nn.Module, images: Tensor) -> None:
    attack = attacks.create(name, eps=0.1, **QUICK.get(name, {"iterations": 3}))
    with pytest.raises((InputError, IndexError), match="12"):  # PGD leaves it to torch
        attack(convnet, images[:2], torch.tensor([0, 12]), None)


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_no_attack_runs_where_there_are_no_gradients(
    name: str, convnet: nn.Module, images: Tensor, labels: Tensor
) -> None:
    """It would leave every image as it is, and the model would seem robust."""
    attack = attacks.create(name, eps=0.05, **QUICK.get(name, {"iterations": 3}))
    with torch.inference_mode():
        with pytest.raises(InputError, match="inference"):
            attack(convnet, images[:2], labels[:2], torch.Generator())
        with torch.inference_mode(False):
            attack(convnet, images[:2], labels[:2], torch.Generator())


@pytest.mark.parametrize("norm", get_args(Norm))
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_every_attack_stays_in_its_ball(name: str, norm: Norm, convnet: nn.Module, labels: Tensor) -> None:
    """Black and white pixels included, and the model comes back as it was."""
    images = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    images[:, :, :2] = images[:, :, :2].round()
    eps = {"linf": 0.05, "l2": 0.5, "l1": 5.0}[norm]
    attack = attacks.create(name, eps=eps, norm=norm, **QUICK.get(name, {"iterations": 3}))
    assert (attack.eps, attack.norm) == (eps, norm)
    before = images.clone()
    x_adv = attack(convnet.train(), images[:12], labels[:12], torch.Generator().manual_seed(0))
    assert x_adv.shape == (12, 3, 8, 8)
    assert 0 < distance(x_adv, images[:12], norm=norm).max() <= eps + 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert torch.equal(images, before)
    assert convnet.training
    assert all(parameter.grad is None for parameter in convnet.parameters())
    still = attacks.create(name, eps=0.0, norm=norm, **QUICK.get(name, {"iterations": 3}))
    assert torch.equal(still(convnet, images[:2], labels[:2], None), images[:2])


@pytest.mark.parametrize("classes", [4, 10])
@pytest.mark.parametrize("name", [name for name in attacks.ATTACKS if name != "autoattack"])
def test_an_attacks_passes_are_those_it_makes(name: str, classes: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, classes))
    images = torch.rand(4, 3, 4, 4)
    with torch.no_grad():
        labels = model(images).argmax(1)
    efforts: dict[str, dict[str, Any]] = {"pgd": {"step": 1e-9, "steps": 30}, "fgsm": {}, "square": {"queries": 200}}
    efforts["fmn"] = {"steps": 30}
    effort = efforts.get(name, {"iterations": 30})
    attack = attacks.create(name, eps=1e-9, **effort)  # nothing falls
    fast = attacks.fast_inference(model)
    attack(fast, images, labels, None)
    assert (fast.forwards + fast.backwards) / 4 == pytest.approx(attack.passes(classes), rel=0.1)


def test_autoattack_is_the_sum_of_its_members() -> None:
    assert attacks.create("autoattack", eps=0.1).passes(10) == 201 + 9 * 201 + 9 * 300 + 5000
    assert attacks.create("autoattack", eps=0.1, version="rand").passes(10) == 2 * 20 * 201


def test_no_function_hides_a_module() -> None:
    for module in pkgutil.iter_modules(attacks.__path__):
        assert inspect.ismodule(getattr(attacks, module.name, None)), module.name


@pytest.mark.parametrize(
    ("name", "options", "cure"),
    [
        ("pdg", {"eps": 0.1}, "pgd"),
        ("pgd", {"ep": 0.1}, "eps"),
        ("pgd", {"step": 0.1}, '"eps"'),
        ("pgd", {"eps": "much"}, "much"),
        ("pgd", {"eps": [0.1, "much"]}, "much"),
        ("pgd", {"eps": [math.nan]}, "eps"),
        ("fgsm", {"eps": 0.1, "steps": 3}, "steps"),
        ("square", {"eps": 0.1, "query": 3}, "queries"),
        ("square", {"eps": 0.1, "queries": 0}, "queries"),
        ("apgd-t", {"eps": 0.1, "queries": 5}, "iterations"),
        ("fab", {"eps": -0.1}, "eps"),
    ],
)
def test_wrong_names_and_options(name: str, options: dict[str, object], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        attacks.create(name, **options)


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_without_a_generator_an_attack_repeats_itself(
    name: str, convnet: nn.Module, images: Tensor, labels: Tensor
) -> None:
    options = QUICK.get(name, {"iterations": 3})
    attack = attacks.create(name, eps=0.05, **options)
    state = torch.random.get_rng_state()
    first = attack(convnet, images[:4], labels[:4])
    assert torch.equal(first, attack(convnet, images[:4], labels[:4]))
    assert torch.equal(torch.random.get_rng_state(), state)
