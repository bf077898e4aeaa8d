"""What Algorithm 1 on single steps asks of a recording."""

import pytest

from excite.errors import InputError
from excite.lipschitz.local import Local
from excite.lipschitz.protocol import Recording


def test_by_default_blocks_are_small_shares_of_the_slopes() -> None:
    assert Local().points(Recording(10, slopes=1000)) == (50, 70, 100, 140, 200)
    assert Local().points(Recording(10, slopes=3)) == (2,)


def test_too_few_slopes_are_refused_before_anything_trains() -> None:
    with pytest.raises(InputError, match="The run will record no local slopes"):
        Local().check(Recording(10))
    with pytest.raises(InputError, match="will record 40 local slopes; N=100 needs 50"):
        Local(n_points=100).check(Recording(10, slopes=40))
    Local(n_points=80).check(Recording(10, slopes=40))
