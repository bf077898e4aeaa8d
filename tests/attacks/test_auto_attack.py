"""AutoAttack and its members give the verdicts of `pyautoattack` called directly, and work where that package dies."""

import warnings
from typing import Any, get_args

import numpy as np
import pyautoattack
import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks import Attack
from excite.attacks.auto_attack import FAB, VERSIONS, AutoAttack, Member, Square
from excite.attacks.auto_pgd import APGD
from excite.attacks.geometry import Norm, distance
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


def member(name: Member, eps: float, *, iterations: int = 6, queries: int = 30, **options: Any) -> Attack:
    effort = {"queries": queries} if name == "square" else {"iterations": iterations}
    return attacks.create(name, eps=eps, **effort, **options)


def shortened(adversary: pyautoattack.AutoAttack) -> None:
    """Six iterations and thirty queries, on the package's own objects, which it sets up for a hundred and 5000."""
    for name in ("apgd", "apgd_targeted"):
        attack = getattr(adversary, name)
        attack.n_iter = 6
        attack.n_iter_2, attack.n_iter_min, attack.size_decr = 1, 1, 1
    adversary.apgd.n_restarts = adversary.fab.n_restarts = 1
    adversary.fab.n_iter = 6
    adversary.square.n_queries = 30


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", get_args(Member))
def test_each_member_gives_the_packages_verdicts(name: Member, norm: Norm) -> None:
    """Several batches, so that the batching has to agree as well."""
    batch_size = 7
    model = network(10)
    x, y = examples(model, 20)
    y[:3] = (y[:3] + 1) % 10
    ours = member(name, EPS[norm], norm=norm, seed=3)
    verdicts = evaluate(model, x, y, {"attack": ours}, batch_size=batch_size, checks=False).outcomes("attack")
    direct = pyautoattack.AutoAttack(
        model, version="custom", attacks=[name], norm={"linf": "Linf", "l2": "L2"}[norm], eps=EPS[norm], seed=3
    )
    shortened(direct)
    with torch.random.fork_rng():
        x_adv, _ = direct.run_standard_evaluation(x, y, batch_size=batch_size)
    with torch.no_grad():
        expected = model(x_adv).argmax(1) == y
    assert np.array_equal(verdicts, expected)
    assert 0 < expected.sum() < 17


def test_a_cascade_gives_the_packages_verdicts() -> None:
    """Also across batches: survivors are regrouped as the package regroups them."""
    model = network(10)
    x, y = examples(model, 50)
    direct = pyautoattack.AutoAttack(model, version="custom", attacks=["apgd-ce", "apgd-dlr"], eps=0.01, seed=1)
    shortened(direct)
    with torch.random.fork_rng():
        theirs, _ = direct.run_standard_evaluation(x, y, batch_size=16)
    with torch.no_grad():
        expected = model(theirs).argmax(1) == y
    attack = AutoAttack(0.01, members=("apgd-ce", "apgd-dlr"), iterations=6, seed=1)
    x_adv = attack(model, x, y)  # in one batch
    with torch.no_grad():
        standing = model(x_adv).argmax(1) == y
    assert abs(int(standing.sum()) - int(expected.sum())) <= 1
    assert torch.equal(x_adv[standing], x[standing])
    verdicts = evaluate(model, x, y, {"cascade": attack}, batch_size=16, checks=False)
    assert np.array_equal(verdicts.outcomes("cascade"), expected)
    assert [stage.name for stage in verdicts.attacks["cascade"].stages] == ["apgd-ce", "apgd-dlr"]


@pytest.mark.parametrize("version", list(VERSIONS))
def test_versions_are_set_up_as_in_the_package(version: str) -> None:
    direct = pyautoattack.AutoAttack(network(10), version=version, eps=0.1, seed=0)
    stages = AutoAttack(0.1, version=version).stages
    assert [name for name, _ in stages] == direct.attacks_to_run
    for name, attack in stages:
        match attack:
            case APGD() if name != "apgd-t":
                assert (attack.restarts, attack.gradients_averaged) == (direct.apgd.n_restarts, direct.apgd.eot_iter)
                assert attack.iterations == direct.apgd.n_iter
            case APGD():
                assert (attack.restarts, attack.iterations) == (1, direct.apgd_targeted.n_iter)
            case FAB() if name == "fab":
                assert (attack.restarts, attack.iterations) == (direct.fab.n_restarts, direct.fab.n_iter)
            case Square():
                assert (attack.restarts, attack.queries) == (direct.square.n_restarts, direct.square.n_queries)


@pytest.mark.parametrize(
    ("classes", "name", "words"),
    [
        (4, "apgd-t", None),
        (3, "apgd-t", "apgd-dlr ran in its place"),
        (3, "apgd-dlr", None),
        (2, "apgd-t", "did not run"),
        (2, "apgd-dlr", "did not run"),
        (2, "fab-t", None),
        (2, "square", None),
    ],
)
def test_few_classes(classes: int, name: Member, words: str | None) -> None:
    model = network(classes)
    x, y = examples(model, 16)
    attack = member(name, 0.05, queries=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x_adv = attack(model, x, y, None)
    assert distance(x_adv, x, norm="linf").max() <= 0.05 + 1e-6
    assert [words in str(warning.message) for warning in caught if words] == ([True] if words else [])
    if words != "did not run":
        with torch.no_grad():
            assert (model(x_adv).argmax(1) != y).any()


def test_two_attacks_whose_names_differ_in_a_figure_are_flagged_each() -> None:
    model = network(3)
    attacks = {f"AA {n}": AutoAttack(n / 255, members=("apgd-t",), iterations=1) for n in (4, 8)}
    flags = evaluate(model, *examples(model, 8), attacks, batch_size=4, checks=False).flags
    assert [flag.name for flag in flags] == ["AA 4/apgd-t", "AA 8/apgd-t"]


def test_randomness_comes_from_the_seed_alone() -> None:
    model = network(10)
    x, y = examples(model, 8)
    square = Square(0.1, queries=5, seed=5)
    first = square(model, x, y, None)
    torch.rand(3)
    state = torch.random.get_rng_state()
    assert torch.equal(square(model, x, y, None), first)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(Square(0.1, queries=5, seed=6)(model, x, y, None), first)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"version": "standrad"}, "standard"),
        ({"members": ("apgd",)}, "apgd-ce"),
        ({"members": ()}, "apgd-ce"),
        ({"norm": "l0"}, "linf"),
        ({"eps": -1.0}, "eps"),
    ],
)
def test_errors_carry_the_cure(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        AutoAttack(**{"eps": 0.1, **options})


def test_flat_inputs_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(N, C, H, W\)"):
        Square(0.1)(nn.Linear(4, 3), torch.rand(2, 4), torch.zeros(2, dtype=torch.long), None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats(dtype: torch.dtype) -> None:
    """The package computes in float32 whatever it is given; the ball is that of the images as they are."""
    model = network(10).to(dtype)
    x, y = examples(network(10), 8)
    x = x.to(dtype)
    for name in get_args(Member):
        moved = member(name, EPS["linf"])(model, x, y, None)
        assert moved.dtype == dtype
        assert float(distance(moved, x, norm="linf").max()) <= EPS["linf"] + 1e-6


def test_images_too_small_for_tiles() -> None:
    """In an L2 ball Square divides images into tiles; the trust checks leave it out where there are none."""
    model, x, y = (
        nn.Sequential(nn.Flatten(), nn.Linear(12, 3)),
        torch.rand(8, 1, 3, 4),
        torch.zeros(8, dtype=torch.long),
    )
    with pytest.raises(InputError, match="shape"):
        member("square", 0.1, norm="l2")(model, x, y, None)
    evaluate(model, x, y, attacks.create("pgd", eps=0.001, norm="l2"))
