import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.errors import InputError
from excite.quantities import duration, number


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), (" 1 / 2 ", 0.5), ("0.031", 0.031), ("1e-3", 1e-3), ("0.1/255", 0.1 / 255)]
)
def test_number_parses_fractions(text: str, value: float) -> None:
    assert number(text) == value


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_any_fraction(numerator: int, denominator: int) -> None:
    assert number(f"{numerator}/{denominator}") == numerator / denominator


@pytest.mark.parametrize("text", ["", "eight", "1/0", "1/2/3", "nan"])
def test_text_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="8/255"):
        number(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.123, "0.12 s"),
        (59, "59 s"),
        (89, "89 s"),
        (91, "1.5 min"),
        (3599, "60 min"),
        (2 * 3600, "2 h"),
        (86400, "24 h"),
        (40 * 86400, "40 days"),
        (400 * 86400, "400 days"),
        (4 * 365.25 * 86400, "4 years"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
