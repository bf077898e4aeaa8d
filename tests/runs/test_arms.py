"""Arms by the names people and folders give them."""

import pytest

from excite.errors import InputError
from excite.runs.arms import arm_named, arm_names, in_order


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
    ("name", "message"),
    [
        ("largets", r'did you mean "largest"'),
        ("grid", r'did you mean "grid:5"'),
        ("grid:0", "no arm"),
        ("grid:1", "at least two"),
        ("", "no arm"),
        ("baseline@stated", "follows an arm that needs L"),
        ("poe@", "follows an arm that needs L"),
        ("poe@../x", "follows an arm that needs L"),
    ],
)
def test_what_is_no_arm(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        arm_named(name)
