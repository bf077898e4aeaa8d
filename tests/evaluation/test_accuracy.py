"""Intervals of a share, and curves of accuracy against ε: by hand, monotone, the same after a kill."""

import math
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from excite import attacks
from excite.attacks import Attack
from excite.attacks.protocol import Ladder
from excite.errors import InputError
from excite.evaluation import Accuracy, Evaluation, evaluate
from excite.evaluation.result import Curve
from excite.files import read_json

Z95 = NormalDist().inv_cdf(0.975)


def test_published_values() -> None:
    low, high = Accuracy(8, 10).interval
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_solve_the_score_equation(counts: tuple[int, int]) -> None:
    correct, total = counts
    accuracy = Accuracy(correct, total)
    low, high = accuracy.interval
    assert 0 <= low <= accuracy.value <= high <= 1
    for p in (low, high):
        if 1e-12 < p < 1 - 1e-12:
            assert abs(correct - total * p) == pytest.approx(Z95 * math.sqrt(total * p * (1 - p)), rel=1e-6)


def test_it_prints_its_interval() -> None:
    assert str(Accuracy(8, 10)) == "80.00% (49.02 to 94.33)"


RADII = (0.005, 0.01, 0.02, 0.04)


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
        x = torch.rand(40, 3, 8, 8)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[:4] = (y[:4] + 1) % 10
    return model, x, y


PGD = attacks.create("pgd", eps=0.04, step=0.01, steps=10)
QUICK = attacks.create("autoattack", eps=0.04, members=("apgd-ce", "square"), iterations=5, queries=20)


@pytest.mark.parametrize("attack", [PGD, QUICK], ids=["pgd", "autoattack"])
def test_a_curve_beside_separate_evaluations(attack: Attack) -> None:
    model, x, y = problem()
    result = evaluate(model, x, y, {"attack": attack}, eps=RADII, batch_size=16, checks=False)
    curve = result.curves["attack"]
    counts = [accuracy.correct for accuracy in curve.accuracies]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 2
    separate = [
        evaluate(model, x, y, {"attack": attack.at(eps)}, batch_size=16, checks=False).outcomes("attack")
        for eps in RADII
    ]
    assert np.array_equal(curve.robust(RADII[-1]), separate[-1])
    for eps, outcomes in zip(RADII, separate, strict=True):
        assert abs(int(curve.robust(eps).sum()) - int(outcomes.sum())) <= 1  # other starts, hardly other verdicts
    assert np.array_equal(result.outcomes("attack"), curve.robust(RADII[-1]))
    assert result.attacks["attack"].stages[-1].standing == counts[-1]


def test_minimal_eps() -> None:
    """Class 0 where four equal pixels s sum to more than 1: an image falls where ε takes s across 1/4."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model.get_parameter("1.weight").copy_(torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]]))
        model.get_parameter("1.bias").copy_(torch.tensor([0.0, 1.0]))
    pixels, y = torch.tensor([0.1, 0.3, 0.5, 0.9, 0.9]), torch.tensor([1, 0, 0, 0, 1])
    x = pixels.reshape(5, 1, 1, 1).repeat(1, 1, 2, 2)
    result = evaluate(model, x, y, {"pgd": attacks.create("pgd", eps=[0.1, 0.3], step=0.1)}, checks=False)
    assert result.curves["pgd"].minimal_eps.tolist() == [0.3, 0.1, 0.3, math.inf, 0.0]


def test_nobody_withstands_twice() -> None:
    """Four radii cost less than the dearest of them twice; where all withstand the largest, they cost as one does."""
    model, x, y = problem()
    together = evaluate(model, x, y, {"pgd": PGD}, eps=RADII, checks=False).cost.backwards
    apart = [evaluate(model, x, y, {"pgd": PGD.at(eps)}, checks=False).cost.backwards for eps in RADII]
    assert together < 2 * max(apart) < 0.7 * sum(apart)
    easy = [1e-6, 2e-6, 3e-6]
    one = evaluate(model, x, y, {"pgd": PGD.at(easy[-1])}, checks=False)
    several = evaluate(model, x, y, {"pgd": PGD}, eps=easy, checks=False)
    assert one.worst == one.clean == several.worst
    assert several.cost.backwards == one.cost.backwards


def test_the_truth_of_a_linear_model() -> None:
    """It falls where ε passes its margin over |w|₁, wherever that lies among the radii."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    x = 0.4 + 0.2 * torch.rand(60, 3, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        logits = model(x)
        weights = model.get_parameter("1.weight")
        truth = (logits[:, 0] - logits[:, 1]).abs() / (weights[0] - weights[1]).abs().sum()
    radii = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    pgd = attacks.create("pgd", eps=radii, step=0.1)
    found = evaluate(model, x, logits.argmax(1), {"pgd": pgd}, checks=False).curves["pgd"]
    assert np.array_equal(found.fell_at, 1 + np.searchsorted(radii, truth.numpy()))
    assert len(set(found.fell_at.tolist())) > 3


def test_saved_and_resumed(tmp_path: Path) -> None:
    model, x, y = problem()
    several = {"pgd": PGD, "autoattack": QUICK}
    whole = evaluate(model, x, y, several, eps=RADII, batch_size=8, checks=False)

    class StopError(Exception):
        pass

    journal = tmp_path / "journal.json"

    def stop(*_: int) -> None:
        if read_json(journal)["attacks"]["autoattack"]["stages"]:  # in the second stage
            raise StopError

    again = partial(evaluate, model, x, y, several, eps=RADII, batch_size=8, checks=False, journal=journal)
    with pytest.raises(StopError):
        again(on_progress=stop)
    resumed = again()
    resumed.save(tmp_path / "evaluation.json")
    loaded = Evaluation.load(tmp_path / "evaluation.json")
    for name, curve in whole.curves.items():
        assert np.array_equal(curve.fell_at, resumed.curves[name].fell_at)
        assert np.array_equal(curve.fell_at, loaded.curves[name].fell_at)
        assert loaded.curves[name].eps == RADII
    assert "ε = 0.005" in str(loaded)


def test_trust_checks_look_at_the_largest_ball() -> None:
    model, x, y = problem()
    assert evaluate(model, x, y, {"pgd": PGD}, eps=(0.001, 0.002)).flags == ()


def test_a_curve_by_hand() -> None:
    curve = Curve((0.1, 0.2), np.array([0, 1, 2, 3]))
    assert curve.minimal_eps.tolist() == [0.0, 0.1, 0.2, math.inf]
    assert [accuracy.correct for accuracy in curve.accuracies] == [2, 1]
    again = Curve.from_json(curve.to_json(), correct=torch.tensor([False, True, True, True]))
    assert np.array_equal(again.fell_at, curve.fell_at)


def test_the_median_radius_by_hand() -> None:
    """Accuracies 90%, 60% and 20% at 0, 0.1 and 0.2: half is a quarter of the way from 60 to 20."""
    curve = Curve((0.1, 0.2), np.repeat([0, 1, 2, 3], [10, 30, 40, 20]))
    assert curve.median.value == pytest.approx(0.125)
    assert curve.median.interval == pytest.approx((0.1 + 0.1 * 0.002 / 0.4, 0.1 + 0.1 * 0.198 / 0.4), abs=1e-6)
    assert str(curve.median) == "0.125 (0.101 to 0.149)"
    assert curve.to_json()["median"]["eps"] == curve.median.value


def test_a_median_out_of_reach() -> None:
    mostly_wrong, mostly_standing = (Curve((1 / 255, 2 / 255), np.repeat([0, 3], n)) for n in ((90, 10), (10, 90)))
    assert str(mostly_wrong.median) == "0.00/255 (0.00/255 to 0.00/255)"
    assert str(mostly_standing.median) == "> 2/255 (> 2/255 to > 2/255)"
    assert mostly_standing.to_json()["median"] == {"eps": None, "interval": [None, None]}


def test_the_interval_of_the_median_holds_it_as_often_as_it_says() -> None:
    """Minimal radii from an exponential distribution, whose median is ln 2, seen through a fine list of radii."""
    rng, radii = np.random.default_rng(0), tuple(np.linspace(0.02, 2, 100).tolist())
    held, trials = 0, 300
    for _ in range(trials):
        smallest = rng.exponential(size=200)
        curve = Curve(radii, 1 + np.searchsorted(radii, smallest))
        below, above = np.quantile(smallest, [0.49, 0.51])
        assert below - 0.02 <= curve.median.value <= above + 0.02
        low, high = curve.median.interval
        held += low <= math.log(2) <= high
    assert 0.91 <= held / trials <= 0.98


@pytest.mark.parametrize("radii", [[], [0.2, 0.1], [0.1, 0.1], [-0.1, 0.1], [math.nan], [0.1, math.inf]])
def test_radii_must_increase(radii: list[float]) -> None:
    with pytest.raises(InputError, match="eps"):
        evaluate(*problem(), {"pgd": PGD}, eps=radii)


def test_a_ladder_from_a_list() -> None:
    ladder = attacks.create("pgd", eps=[0.1, 0.2], step=0.04)
    assert isinstance(ladder, Ladder)
    assert [rung.eps for rung in ladder.rungs] == [0.1, 0.2]
    assert ladder.rungs[0] == attacks.create("pgd", eps=0.1, step=0.02)
    assert ladder.passes(10) == attacks.create("pgd", eps=0.1, step=0.02).passes(10)


def test_a_function_without_eps_has_no_curve() -> None:
    with pytest.raises(InputError, match="eps"):
        evaluate(*problem(), {"still": lambda _model, x, _y: x}, eps=[0.1, 0.2])


def test_a_line_per_example() -> None:
    model, x, y = problem()
    result = evaluate(model, x, y, {"PGD": PGD, "curve": PGD}, checks=False)
    header, *lines = result.csv().splitlines()
    assert header == "example,clean,PGD,curve,worst"
    columns = list(zip(*(line.split(",") for line in lines), strict=True))
    assert columns[0] == tuple(map(str, range(40)))
    assert [int(value) for value in columns[1]] == result.correct.astype(int).tolist()
    assert [int(value) for value in columns[4]] == result.outcomes("worst").astype(int).tolist()
    curve = evaluate(model, x, y, {"curve": PGD}, eps=RADII, checks=False)
    header, *lines = curve.csv().splitlines()
    assert header == "example,clean,curve,worst,curve: minimal eps"
    radii = np.array([float(line.split(",")[-1]) for line in lines])
    assert np.array_equal(radii, curve.curves["curve"].minimal_eps)


def test_curves_are_drawn() -> None:
    from matplotlib import pyplot

    model, x, y = problem()
    result = evaluate(model, x, y, {"curve": PGD}, eps=RADII, checks=False)
    axes = result.plot()
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [0.0, *RADII]  # type: ignore[union-attr]
    expected = [100 * point.value for point in (result.clean, *result.curves["curve"].accuracies)]
    assert line.get_ydata().tolist() == expected  # type: ignore[union-attr]
    assert result.plot(axes) is axes
    pyplot.close(axes.figure)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="eps="):
        evaluate(model, x, y, {"PGD": PGD}, checks=False).plot()


def test_what_a_notebook_and_a_prompt_show() -> None:
    model, x, y = problem()
    result = evaluate(model, x, y, {"<b>": PGD, "two": PGD}, checks=False)
    assert len(repr(result)) < 120
    assert "\n" not in repr(result)
    assert f"worst {result.worst.value:.2%}" in repr(result)
    table = result._repr_html_()
    assert "&lt;b&gt;" in table
    assert table.count("<tr>") == 5  # titles, clean, two attacks, worst
    assert str(result.worst) in table
