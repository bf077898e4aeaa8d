"""Attacks as people give them; what `evaluate` makes of each form is in tests/evaluation/test_judge_inputs.py."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks import PGD, Attack
from excite.attacks.geometry import Norm
from excite.attacks.given import as_attacks, named_attacks
from excite.errors import InputError


def test_options_reach_the_attacks_that_take_them() -> None:
    options = {"eps": 8 / 255, "steps": 10, "norm": None}
    chosen = named_attacks(("pgd", "square"), options)
    assert str(chosen["pgd"]) == "PGD-10, L∞ ε = 8/255, step 2/255"
    assert str(chosen["square"]) == "SQUARE, L∞ ε = 8/255"
    with pytest.raises(InputError, match="steps"):
        named_attacks(("square",), options)
    with pytest.raises(InputError, match="pdg"):
        named_attacks(("pdg",), options)
    with pytest.raises(InputError, match="eps"):
        named_attacks(("pgd",), {})


@pytest.mark.parametrize("name", ["pgd", "square", "apgd-ce", "fab"])
def test_restarts_are_every_attacks_own(name: str) -> None:
    """Nobody has to ask for PGD's random start, and no other attack is asked about it."""
    attack: Any = named_attacks((name,), {"eps": 0.1, "restarts": 3})[name]
    assert attack.restarts == 3
    assert getattr(attack, "random_start", True)


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "pgd", "eps": "8/255", "steps": 10},
        {"kind": "pgd", "eps": "8/255", "step": "2/255", "steps": 10},
        {"kind": {"kind": "pgd", "eps": "8/255", "steps": 10}},  # an attack that is called so
    ],
)
def test_a_table_of_a_toml_file(given: dict[str, Any]) -> None:
    (attack,) = as_attacks(given).values()
    assert attack == PGD(8 / 255, 2.5 * (8 / 255) / 10, 10)


def test_a_table_without_a_kind_says_where() -> None:
    with pytest.raises(InputError, match=r"attacks\.mine"):
        as_attacks({"mine": {"eps": 0.1}})


@dataclass(frozen=True)
class Nudge(Attack):
    """Has a step of its own, and no number of steps."""

    eps: float
    step: float = 0.25
    norm: Norm = "linf"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return (x + self.step * self.eps).clamp(0, 1)

    def passes(self, classes: int) -> float:
        return 0


def test_a_new_attacks_own_step_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attacks.ATTACKS, "nudge", Nudge)
    assert as_attacks("nudge", 0.1) == named_attacks(("nudge",), {"eps": 0.1}) == {"nudge": Nudge(0.1, 0.25)}


@pytest.mark.parametrize(
    "given",
    [
        PGD(8 / 255),
        {"kind": "pgd", "eps": "8/255"},
        [PGD(8 / 255), PGD(4 / 255)],
        attacks.create("pgd", eps=[0.02, 0.03]),
    ],
)
def test_a_radius_that_nobody_takes_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"eps=\[0.01\]"):
        as_attacks(given, 0.01)
    assert [attack.eps for attack in as_attacks([PGD(8 / 255), "pgd"], 0.01).values()] == [8 / 255, 0.01]
    assert {attack.eps for attack in as_attacks(given, [0.01]).values()} == {0.01}


@pytest.mark.parametrize("name", ["clean", "worst"])
def test_names_of_columns_are_no_attacks(name: str) -> None:
    with pytest.raises(InputError, match=name):
        as_attacks({name: PGD(0.1)})
