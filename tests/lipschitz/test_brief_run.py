import math
from itertools import count

import pytest

from excite.errors import InputError
from excite.lipschitz.brief_run import BriefRun, Reference, ended_well, train_briefly


def run(rate: float, final: float, initial: float = 2.3) -> BriefRun:
    return BriefRun(rate, (initial, final), 2)


def test_the_end_is_the_mean_over_the_last_quarter() -> None:
    found = train_briefly((20.0 + n for n in count()), rate=0.1, steps=20)
    assert found.final == pytest.approx((35 + 36 + 37 + 38 + 39) / 5)
    assert found.way_down == 20.0 - found.final
    assert Reference.among([found]) is None


@pytest.mark.parametrize("last", [math.nan, math.inf, 300.0])
def test_a_run_that_blows_up_is_over_and_did_not_end_well(last: float) -> None:
    found = train_briefly(iter([2.3, 2.0, last, 1.0, 1.0]), rate=0.1, steps=5)
    assert len(found.losses) == 3
    assert found.final == math.inf
    assert ended_well([found, run(0.5, 1.0)]) == [False, True]


def test_a_jump_that_is_made_good_is_forgiven() -> None:
    jumps = [2.3 * math.exp(-n / 10) + 20 * (n == 25) for n in range(60)]
    found = train_briefly(iter(jumps), rate=0.1, steps=60)
    assert ended_well([found]) == [True]


def test_less_than_two_thirds_as_far_is_not_far_enough() -> None:
    best = [run(0.2, 1.3), run(0.3, 1.3)]
    assert ended_well([*best, run(0.8, 1.62), run(0.8, 1.66)]) == [True, True, True, False]


def test_slower_rates_are_excused_unless_their_loss_rose() -> None:
    best = [run(0.4, 1.3), run(0.4, 1.3)]
    assert ended_well([*best, run(0.1, 2.3), run(0.1, 2.4), run(0.3, 1.9), run(0.3, 2.1)])[2:] == [
        True,
        False,
        True,
        False,
    ]


def test_where_no_run_came_down_those_that_rose_did_not_end_well() -> None:
    assert ended_well([run(0.1, 2.3), run(0.2, 2.5)]) == [True, False]


def test_only_faster_runs_are_left_behind() -> None:
    best = train_briefly((2.3 - n / 60 for n in count()), rate=0.2, steps=60)
    flat = [2.3] * 60
    assert len(train_briefly(flat, rate=0.3, steps=60, so_far=[best]).losses) == 45
    assert len(train_briefly(flat, rate=0.1, steps=60, so_far=[best]).losses) == 60


def test_a_run_that_has_come_far_enough_is_over_unless_it_may_set_a_new_mark() -> None:
    falls = [2.3 * math.exp(-n / 10) for n in range(80)]
    first = train_briefly(falls, rate=0.2, steps=80)
    again = train_briefly(falls, rate=0.2, steps=80, so_far=[first])
    faster = train_briefly(falls, rate=0.3, steps=80, so_far=[first])
    assert again.arrived
    assert 10 < len(again.losses) < 30
    assert not faster.arrived
    assert len(faster.losses) == 80
    assert ended_well([first, again, faster]) == [True, True, True]
    assert Reference.among([first, again]) == Reference.among([first])


def test_a_loss_that_is_not_finite_from_the_first_is_nobodys_rate() -> None:
    with pytest.raises(InputError, match="no rate can be blamed"):
        train_briefly(iter([math.nan]), rate=0.1, steps=5)
