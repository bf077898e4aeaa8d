"""The adapter gives the verdicts of `pyautoattack` called directly, and works where that package dies."""

import warnings
from typing import Any

import pyautoattack
import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks.autoattack import VERSIONS, AutoAttack, AutoAttackMember, Member
from excite.attacks.ball import Norm, distance
from excite.attacks.protocol import AttackWarning
from excite.errors import InputError
from excite.evaluation import evaluate

EPS = {"linf": 0.01, "l2": 0.12}


def network(classes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(classes)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, classes)]
        return nn.Sequential(*layers).eval()


def examples(model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return x, model(x).argmax(1)


def shortened(adversary: pyautoattack.AutoAttack) -> None:
    """Ten iterations and thirty queries, on the package's own objects, which it sets up for a hundred and 5000."""
    for name in ("apgd", "apgd_targeted"):
        attack = getattr(adversary, name)
        attack.n_iter = 10
        attack.n_iter_2, attack.n_iter_min, attack.size_decr = 2, 1, 1
    adversary.apgd.n_restarts = adversary.fab.n_restarts = 1
    adversary.fab.n_iter = 10
    adversary.square.n_queries = 30


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("member", ["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"])
def test_each_member_gives_the_packages_verdicts(member: Member, norm: Norm) -> None:
    """Three batches, so that the batching has to agree as well."""
    model = network(10)
    x, y = examples(model, 30)
    y[:3] = (y[:3] + 1) % 10
    ours = AutoAttackMember(member, EPS[norm], norm, iterations=10, queries=30, seed=3)
    verdicts = evaluate(model, x, y, {"attack": ours}, batch_size=10, checks=False).outcomes("attack")
    direct = pyautoattack.AutoAttack(
        model, version="custom", attacks=[member], norm={"linf": "Linf", "l2": "L2"}[norm], eps=EPS[norm], seed=3
    )
    shortened(direct)
    with torch.random.fork_rng():
        x_adv, _ = direct.run_standard_evaluation(x, y, batch_size=10)
    with torch.no_grad():
        expected = model(x_adv).argmax(1) == y
    assert torch.equal(verdicts, expected)
    assert 0 < expected.sum() < 27


def test_a_cascade_gives_the_packages_images() -> None:
    """Also across batches: survivors are regrouped as the package regroups them."""
    model = network(10)
    x, y = examples(model, 50)
    direct = pyautoattack.AutoAttack(model, version="custom", attacks=["apgd-ce", "apgd-dlr"], eps=0.01, seed=1)
    direct.apgd.n_restarts = 1
    with torch.random.fork_rng():
        expected, _ = direct.run_standard_evaluation(x, y, batch_size=16)
    x_adv = attacks.autoattack(model, x, y, eps=0.01, members=("apgd-ce", "apgd-dlr"), seed=1, batch_size=16)
    torch.testing.assert_close(x_adv, expected, rtol=0, atol=2e-3)
    verdicts = evaluate(
        model, x, y, {"cascade": AutoAttack(0.01, members=("apgd-ce", "apgd-dlr"), seed=1)}, batch_size=16, checks=False
    )
    with torch.no_grad():
        assert torch.equal(verdicts.outcomes("cascade"), model(expected).argmax(1) == y)
    assert [stage.name for stage in verdicts.attacks["cascade"].stages] == ["apgd-ce", "apgd-dlr"]


@pytest.mark.parametrize("version", list(VERSIONS))
def test_versions_are_set_up_as_in_the_package(version: str) -> None:
    direct = pyautoattack.AutoAttack(network(10), version=version, eps=0.1, seed=0)
    members = [attack for _, attack in AutoAttack(0.1, version=version).stages]
    assert [member.member for member in members if isinstance(member, AutoAttackMember)] == direct.attacks_to_run
    for member in members:
        assert isinstance(member, AutoAttackMember)
        if member.member in ("apgd-ce", "apgd-dlr"):
            assert (member.restarts, member.gradients_averaged) == (direct.apgd.n_restarts, direct.apgd.eot_iter)
            assert member.iterations == direct.apgd.n_iter
        if member.member == "fab":
            assert (member.restarts, member.iterations) == (direct.fab.n_restarts, direct.fab.n_iter)
        if member.member == "square":
            assert (member.restarts, member.queries) == (direct.square.n_restarts, direct.square.n_queries)


@pytest.mark.parametrize(
    ("classes", "member", "words"),
    [
        (4, "apgd-t", None),
        (3, "apgd-t", "apgd-dlr ran in its place"),
        (3, "apgd-dlr", None),
        (2, "apgd-t", "left out"),
        (2, "apgd-dlr", "left out"),
        (2, "fab-t", None),
        (2, "square", None),
    ],
)
def test_few_classes(classes: int, member: Member, words: str | None) -> None:
    model = network(classes)
    x, y = examples(model, 16)
    attack = AutoAttackMember(member, 0.05, iterations=10, queries=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x_adv = attack(model, x, y, None)
    assert distance(x_adv, x, norm="linf").max() <= 0.05 + 1e-6
    assert [words in str(warning.message) for warning in caught if words] == ([True] if words else [])
    if words != "left out":
        with torch.no_grad():
            assert (model(x_adv).argmax(1) != y).any()


def test_what_the_package_warns_of_ends_up_in_the_result() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10), Rounded())
    x, y = examples(model, 8)
    attack = AutoAttackMember("apgd-dlr", 0.01, iterations=3)
    with pytest.warns(AttackWarning, match="zero gradient"):
        attack(model, x, y, None)
    flags = evaluate(model, x, y, {"apgd-dlr": attack}, batch_size=4, checks=False).flags
    assert [flag.name for flag in flags] == ["apgd-dlr"]
    assert "zero gradient" in flags[0].message


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (100 * x).round()


def test_randomness_comes_from_the_seed_alone() -> None:
    model = network(10)
    x, y = examples(model, 8)
    square = AutoAttackMember("square", 0.1, queries=5, seed=5)
    first = square(model, x, y, None)
    torch.rand(3)
    state = torch.random.get_rng_state()
    assert torch.equal(square(model, x, y, None), first)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(AutoAttackMember("square", 0.1, queries=5, seed=6)(model, x, y, None), first)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"version": "standrad"}, "standard"),
        ({"members": ("apgd",)}, "apgd-ce"),
        ({"members": ()}, "choose from"),
        ({"norm": "l1"}, "linf"),
        ({"eps": -1.0}, "eps ≥ 0"),
    ],
)
def test_errors_carry_the_cure(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        AutoAttack(**{"eps": 0.1, **options})


def test_flat_inputs_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(N, C, H, W\)"):
        AutoAttackMember("square", 0.1)(nn.Linear(4, 3), torch.rand(2, 4), torch.zeros(2, dtype=torch.long), None)
