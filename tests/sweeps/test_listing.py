import json

from excite.runs import catalogue, load
from excite.sweeps.costs import Listing, Price, Workload

LISTING = Listing(
    names={"models": ["lenet5", "resnet8"]},
    experiments={name: load(name) for name in ("figure-3", "figure-4")},
    costs={
        "figure-3": Price(Workload(training=100.0), 200.0, sweep_runs=0, sweep_seconds=0.0),
        "figure-4": Price(Workload(training=50.0, attacking=25.0), 4e6, sweep_runs=14, sweep_seconds=6e7),
    },
    machine="cpu × 2",
)


def test_every_experiment_has_a_line_with_its_cost() -> None:
    heading, columns, *lines = str(LISTING).splitlines()
    assert "cpu × 2" in heading
    start = columns.index("one run"), columns.index("its sweep")
    for line, run, sweep in zip(lines, ("≈ 3.3 min", "≈ 46 days"), ("", "14 runs ≈ 1.9 years"), strict=False):
        assert line[start[0] : start[1]].strip() == run
        assert line[start[1] :].startswith(sweep)
    assert lines[0].endswith(load("figure-3").summary)
    assert lines[-1] == "models: lenet5, resnet8"


def test_machines_get_the_work_and_the_seconds() -> None:
    values = json.loads(json.dumps(LISTING.to_json()))
    assert values["models"] == ["lenet5", "resnet8"]
    assert values["experiments"]["figure-4"] == {
        "summary": load("figure-4").summary,
        "work": {"training": 50.0, "estimating": 0.0, "attacking": 25.0, "teaching": 0.0},
        "seconds": 4e6,
        "sweep_runs": 14,
        "sweep_seconds": 6e7,
    }
    assert set(values["experiments"]) <= set(catalogue())


def test_in_a_narrow_terminal_summaries_stand_below_their_names() -> None:
    text = LISTING.text(80)
    assert max(map(len, text.splitlines())) <= 80
    assert set(str(LISTING).split()) == set(text.split())
    assert LISTING.text(1000) == str(LISTING)
