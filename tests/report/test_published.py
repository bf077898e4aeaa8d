"""The paper's figures, checked by what the paper says about them."""

from typing import Any

import pytest

from excite.report.rows import FIGURE_5, PUBLISHED, published_row
from excite.runs import load
from excite.runs.experiment import catalogue


def test_every_published_row_is_in_the_catalogue() -> None:
    shipped = catalogue()
    for name in PUBLISHED:
        assert name in shipped
        assert f"{name}-small" in shipped
        assert published_row(load(f"{name}-small")) is PUBLISHED[name] is published_row(load(name))
    assert published_row(load("mnist-sample")) is None


@pytest.mark.parametrize("change", ["training.objective=standard", "model.name=resnet20", "data.name=mnist"])
def test_changed_experiment_repeats_no_published_row(change: str) -> None:
    assert published_row(load("table-2-trades-small", overrides=["training.epochs=2"])) is not None
    assert published_row(load("table-2-trades-small", overrides=[change])) is None


@pytest.mark.parametrize(
    ("name", "attack", "same"),
    [
        ("table-1-cifar10-resnet20", {"kind": "pgd", "eps": "1/255", "step": "0.1/255", "steps": 20}, True),
        ("table-1-cifar10-resnet20", {"kind": "pgd", "eps": "1/255", "loss": "margin"}, False),
        ("table-1-cifar10-resnet20", {"kind": "pgd", "eps": "2/255"}, False),
        ("table-1-cifar10-resnet20", {"kind": "pgd", "eps": "1/255", "norm": "l2"}, False),
        ("table-2-trades", {"kind": "autoattack", "eps": "8/255"}, True),
        ("table-2-trades", {"kind": "autoattack", "eps": "8/255", "norm": "l2"}, False),
        ("table-2-trades", {"kind": "autoattack", "eps": 8 / 255}, True),
        ("table-2-trades", {"kind": "autoattack", "eps": 8 / 255, "version": "rand"}, False),
        ("table-2-trades", {"kind": "autoattack", "eps": 8 / 255, "members": ["square"]}, False),
        ("table-2-trades", {"kind": "autoattack", "eps": 8 / 255, "iterations": 5}, False),
        ("table-2-trades", {"kind": "autoattack", "eps": 0.031}, False),
        ("table-2-trades", {"kind": "autoattack", "eps": ["4/255", "8/255"]}, False),
        ("table-2-trades", {"kind": "pgd", "eps": "8/255"}, False),
    ],
)
def test_matches_published_numbers_to_their_attack(name: str, attack: dict[str, Any], same: bool) -> None:
    assert PUBLISHED[name].measured_by(attack) == same


@pytest.mark.parametrize(("table", "gain"), [(1, 11.05), (2, 0.44)])
def test_the_largest_gain_of_each_table(table: int, gain: float) -> None:
    rows = [row.arms for row in PUBLISHED.values() if row.table == table]
    gains = [arms[arm].robust[0] - arms["baseline"].robust[0] for arms in rows for arm in ("poe", "largest")]
    assert max(gains) == pytest.approx(gain)
    assert min(gains) > 0


def test_figure_5_holds_the_l_of_table_1() -> None:
    row, (n_maxima, n_points, constants) = PUBLISHED["table-1-cifar10-resnet20"], FIGURE_5.values()
    assert constants[n_maxima.index(row.n_maxima)][n_points.index(row.n_points)] == row.constant
    assert [len(line) for line in constants] == [len(n_points)] * len(n_maxima)
