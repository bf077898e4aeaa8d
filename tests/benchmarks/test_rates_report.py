"""The tables of docs/rates.md, from trainings that were made up: every method 1 point off, one of them 50."""

import pytest

from benchmarks.rates import GRID, NETWORKS, ONLINE, SEEDS
from benchmarks.rates_report import METHODS, Results, figure, online_table, peers_table, picks_table, regrets_table
from benchmarks.regret import Training

BAD = "torch-lr-finder"


def made_up(network: str, methods: tuple[str, ...] = METHODS) -> list[Training]:
    found = []
    for seed in SEEDS:
        for number, rate in enumerate(NETWORKS[network].grid):
            found.append(Training(network, seed, GRID, rate, 80.0 + number, 60.0 - number, 0, 100))
        best = 80.0 + len(NETWORKS[network].grid) - 1
        for method in methods:
            points = 50.0 if method == BAD else 1.0
            rate = 0.1 * (1 + seed) if method == "2/L" else 0.1
            found.append(Training(network, seed, method, rate, best - points, 60.0 + 1.0, 100, 100))
    return found


@pytest.fixture(scope="module")
def results() -> Results:
    complete = [each for name in ("perceptron-tanh", "lenet-relu") for each in made_up(name)]
    return Results([*complete, *made_up("perceptron-bn", METHODS[:3])])


def test_a_seed_counts_when_every_method_was_trained_with_it(results: Results) -> None:
    assert results.seeds == {"perceptron-tanh": list(SEEDS), "lenet-relu": list(SEEDS)}
    two = [each for each in made_up("lenet-relu") if (each.seed, each.method) != (1, BAD)]
    assert Results(two).seeds == {"lenet-relu": [0, 2]}


def test_the_worst_case_the_failures_the_spread_and_the_cost(results: Results) -> None:
    rows = {row.split(" | ")[0].strip("| *"): row.split(" | ") for row in peers_table(results).splitlines()}
    assert rows["1/L"][1].startswith("1.0 (1.0 to 1.0), clean")
    assert rows["1/L"][3] == "-1.0 (-1.0 to -1.0)"  # better than the best rate of the grid under PGD
    assert rows[BAD][1].startswith("50.0 (50.0 to 50.0), clean")
    assert (rows[BAD][4], rows["1/L"][4]) == ("6 of 6", "0 of 6")
    assert (rows["2/L"][5], rows["1/L"][5]) == ("×3", "×1")
    assert rows["1/L"][6].strip(" |") == "2.00"


def test_every_table_names_every_method_or_network(results: Results) -> None:
    for table in (regrets_table(results), picks_table(results)):
        assert all(method in table for method in METHODS)
    assert "50.0% (at most 50.0%)" in online_table(results)  # 100 steps of 200 were rolled back
    assert ONLINE in online_table(results)


def test_the_figure_has_a_panel_per_network(results: Results) -> None:
    assert [axes.get_title() for axes in figure(results).axes] == [NETWORKS[n].title for n in results.networks]
