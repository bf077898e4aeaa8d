"""Arms by the names people and folders give them."""

import pytest

from excite.errors import InputError
from excite.runs.arms import arm_named, arm_names


def test_names_and_folders() -> None:
    assert arm_named("poe").multiple == 1
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
    ],
)
def test_what_is_no_arm(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        arm_named(name)
