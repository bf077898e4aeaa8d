from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from excite.errors import InputError
from excite.registry import build, check_name, lookup, short_name


def make(*, size: int, kind: Literal["a", "b"] = "a", steps: Sequence[int] = (), house: str = "") -> tuple[Any, ...]:
    return size, kind, tuple(steps), house


MAKERS: Mapping[str, Callable[..., tuple[Any, ...]]] = {"make": make}


def test_options_and_what_the_house_gives_reach_the_factory() -> None:
    assert build("thing", MAKERS, "make", {"size": 2, "steps": [1]}, house="ours") == (2, "a", (1,), "ours")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mak", {"size": 1}, 'no thing "mak"; did you mean "make"'),
        ("make", {"size": 1, "step": [1]}, 'no option of the thing make "step"; did you mean "steps"'),
        ("make", {}, 'also needs "size"'),
        ("make", {"size": "big"}, '"size" of the thing make does not fit: Expected `int`, got `str`'),
        ("make", {"size": 1, "kind": "c"}, '"kind" of the thing make is .c.; choose one of a, b'),
        ("make", {"size": 1, "house": "mine"}, 'no option of the thing make "house"'),
    ],
)
def test_what_does_not_fit_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("thing", MAKERS, name, options, house="ours")


def test_lookup() -> None:
    assert lookup("thing", MAKERS, "make") is make
    with pytest.raises(InputError, match="Known: make"):
        lookup("thing", MAKERS, "nothing like it")


def test_a_name_is_measured_as_the_file_system_does() -> None:
    check_name("thing", 100 * "x")
    for name in (101 * "x", 40 * "漢", ""):
        with pytest.raises(InputError, match="100 bytes"):
            check_name("thing", name)
    assert short_name("short") == "short"
    assert len(short_name(100 * "漢").encode()) <= 100
    assert short_name(100 * "漢") != short_name(101 * "漢")
