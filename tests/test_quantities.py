import pytest
from hypothesis import given
from hypothesis import strategies as st

from excite.errors import InputError
from excite.quantities import number


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), (" 1 / 2 ", 0.5), ("0.031", 0.031), ("1e-3", 1e-3), ("0.1/255", 0.1 / 255)]
)
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert number(text) == value


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_any_fraction(numerator: int, denominator: int) -> None:
    assert number(f"{numerator}/{denominator}") == numerator / denominator


@pytest.mark.parametrize("text", ["", "eight", "1/0", "1/2/3", "nan"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write for instance"):
        number(text)
