"""Errors hand over the cure: near names are suggested, far ones are not."""

import pytest

from excite.errors import unknown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnt20", 'There is no model "resnt20"; did you mean "resnet20"? Known: lenet5, resnet20.'),
        ("RESNET20", 'There is no model "RESNET20"; did you mean "resnet20"? Known: lenet5, resnet20.'),
        ("", 'There is no model "". Known: lenet5, resnet20.'),
        ("vit", 'There is no model "vit". Known: lenet5, resnet20.'),
    ],
)
def test_suggestions_only_when_near(name: str, message: str) -> None:
    assert str(unknown("model", name, ["lenet5", "resnet20"])) == message


def test_where_there_is_nothing_to_name() -> None:
    assert "leave it out" in str(unknown("option", "x", [])).lower()
