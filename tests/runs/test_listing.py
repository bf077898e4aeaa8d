import json

from excite.runs import catalogue, load
from excite.runs.costs import Listing, Price, Workload

LISTING = Listing(
    names={"models": ["lenet5", "resnet8"]},
    experiments={name: load(name) for name in ("figure-3", "figure-4")},
    costs={
        "figure-3": Price(Workload(training=100.0), 200.0, 2 * 10**8, sweep_runs=0, sweep_seconds=0.0),
        "figure-4": Price(Workload(training=50.0, attacking=25.0), 4e6, 39 * 10**9, sweep_runs=14, sweep_seconds=6e7),
    },
    machine="cpu × 2",
)


def test_every_experiment_shows_its_cost_and_summary() -> None:
    lines = str(LISTING).splitlines()
    assert "cpu × 2" in lines[0]
    assert lines[1].split() == ["figure-3", "≈", "3.3", "min", "200.0", "MB"]
    assert lines[2].strip() == load("figure-3").summary
    assert " ".join(lines[3].split()) == "figure-4 ≈ 46 days 39.0 GB 14 runs ≈ 1.9 years"
    assert lines[-1] == "models: lenet5, resnet8"


def test_json_has_the_work_and_the_seconds() -> None:
    values = json.loads(json.dumps(LISTING.to_json()))
    assert values["models"] == ["lenet5", "resnet8"]
    assert values["experiments"]["figure-4"] == {
        "summary": load("figure-4").summary,
        "work": {"training": 50.0, "estimating": 0.0, "attacking": 25.0, "teaching": 0.0},
        "seconds": 4e6,
        "memory": 39 * 10**9,
        "sweep_runs": 14,
        "sweep_seconds": 6e7,
    }
    assert set(values["experiments"]) <= set(catalogue())
