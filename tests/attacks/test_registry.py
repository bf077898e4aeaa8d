"""Attacks by name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.errors import InputError

NAMES: dict[str, tuple[dict[str, Any], str]] = {
    "pgd": ({"eps": 8 / 255, "step": 2 / 255, "random_start": True, "restarts": 5}, "PGD-20, L∞ ε = 8/255, step 2/255"),
    "autoattack": ({"eps": 8 / 255}, "AutoAttack (standard), L∞ ε = 8/255"),
    "apgd-ce": ({"eps": 0.5, "norm": "l2", "iterations": 3}, "APGD-CE, L2 ε = 0.5"),
    "apgd-dlr": ({"eps": 1 / 255, "iterations": 3}, "APGD-DLR, L∞ ε = 1/255"),
    "apgd-t": ({"eps": 1 / 255, "iterations": 3}, "APGD-T, L∞ ε = 1/255"),
    "fab": ({"eps": 1 / 255, "iterations": 3}, "FAB, L∞ ε = 1/255"),
    "fab-t": ({"eps": 1 / 255, "iterations": 3}, "FAB-T, L∞ ε = 1/255"),
    "square": ({"eps": 0.031, "queries": 10}, "SQUARE, L∞ ε = 0.031"),
}


def test_every_attack_is_listed() -> None:
    assert set(NAMES) == set(attacks.ATTACKS)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "autoattack"])
def test_every_attack_runs_and_says_its_name(name: str, convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    options, words = NAMES[name]
    attack = attacks.create(name, **options)
    assert str(attack).startswith(words)
    x_adv = attack(convnet, images[:6], labels[:6], torch.Generator().manual_seed(0))
    assert x_adv.shape == images[:6].shape


@pytest.mark.parametrize(
    ("name", "options", "cure"),
    [
        ("pdg", {"eps": 0.1}, 'did you mean "pgd"'),
        ("pgd", {"ep": 0.1}, 'did you mean "eps"'),
        ("pgd", {"eps": 0.1}, '"step"'),
        ("pgd", {"eps": "8/255", "step": 0.1}, "float"),
        ("square", {"eps": 0.1, "query": 3}, 'did you mean "queries"'),
    ],
)
def test_wrong_names_and_options(name: str, options: dict[str, object], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        attacks.create(name, **options)
