"""Arms by the names people and folders give them."""

from pathlib import Path

import pytest

from excite.errors import InputError
from excite.lipschitz import LipschitzEstimate
from excite.runs.arms import OWN, arm_named, arm_names, in_order
from excite.runs.folder import RunFolder
from excite.runs.records import StoredEstimate


def test_names_and_folders() -> None:
    assert (arm_named("poe").estimator, arm_named("poe@stated").estimator) == ("", "stated")
    assert arm_named("largest@edge").short_title == "2/L (edge)"
    assert in_order({"grid-10", "poe@edge", "largest", "grid-2", "baseline", "notes"}) == [
        "baseline",
        "largest",
        "poe@edge",
        "grid-2",
        "grid-10",
    ]
    assert arm_named("grid:5") == arm_named("grid-5")
    assert arm_named("grid:12").title == "grid search, 12 rates"
    assert arm_names("baseline, grid:3,poe,baseline") == ("baseline", "grid-3", "poe")


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("largets", '"largest"'),
        ("grid", '"grid:5"'),
        ("grid:0", "arm"),
        ("0/L", "arm"),
        ("batch:0", "arm"),
        ("batch:128@stated", "poe@stated"),
        ("grid:1", "grid:5"),
        ("", "arm"),
        ("baseline@stated", "poe@stated"),
        ("poe@", "poe@stated"),
        ("poe@../x", "poe@stated"),
    ],
)
def test_what_is_no_arm(name: str, keyword: str) -> None:
    with pytest.raises(InputError, match=keyword):
        arm_named(name)


@pytest.mark.parametrize(
    ("name", "folder", "rate", "batch"),
    [
        ("baseline", "baseline", 0.1, 1000),
        ("poe", "poe", 0.4, 1000),
        ("placebo", "placebo", 0.115, 1000),
        ("batch", "batch", 0.1, 250),  # 0.1 / 250 = 0.4 / 1000
        ("batch:128", "batch-128", 0.1, 128),
        ("1.9/L", "1.9-over-L", 0.76, 1000),
        ("1.9-over-L@stated", "1.9-over-L@stated", 0.76, 1000),
    ],
)
def test_rates_and_batches_of_arms_and_controls(
    name: str, folder: str, rate: float, batch: int, tmp_path: Path
) -> None:
    """A baseline at 0.1 and L = 2.5, so that 1/L is four times the baseline's rate."""
    arm, run = arm_named(name), RunFolder(tmp_path)
    estimate = LipschitzEstimate(2.5, (2.0, 3.0), method="stated", identified=True, basis="")
    for estimator in (OWN, "stated"):
        StoredEstimate(estimate, seconds=1.0).save(run.estimate_file(estimator))
    assert arm.name == folder
    assert run.first_rate(arm, 0.1) == pytest.approx(rate)
    assert run.batch_size(arm, 0.1, 1000) == batch
    assert arm.control is (name.startswith(("placebo", "batch")))


def test_controls_stand_after_what_they_control() -> None:
    assert in_order({"batch-128", "placebo", "largest", "batch", "baseline"}) == [
        "baseline",
        "largest",
        "placebo",
        "batch",
        "batch-128",
    ]
