import math
from itertools import count
from typing import Any

import pytest
import torch

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


def test_the_farther_above_good_rates_the_sooner_a_run_is_left_behind() -> None:
    best = train_briefly((2.3 - n / 60 for n in count()), rate=0.2, steps=60)
    lengths = [len(train_briefly([2.3] * 60, rate=rate, steps=60, so_far=[best]).losses) for rate in (0.3, 0.45, 2.0)]
    assert lengths == [45, 30, 18]


def test_nobody_is_left_behind_on_a_plateau() -> None:
    plateau = [2.3 - 0.01 * n / 40 if n < 40 else 2.3 - (n - 40) / 15 for n in range(60)]
    best = train_briefly(plateau, rate=0.2, steps=60)
    assert len(train_briefly([2.3] * 60, rate=2.0, steps=60, so_far=[best]).losses) > 40


def test_a_run_that_has_come_far_enough_is_over_unless_it_may_set_a_new_mark() -> None:
    falls = [1.15 + 1.15 * math.exp(-n / 10) for n in range(80)]
    first = train_briefly(falls, rate=0.2, steps=80)
    again, ahead, beyond = (train_briefly(falls, rate=rate, steps=80, so_far=[first]) for rate in (0.2, 0.4, 0.5))
    assert again.arrived
    assert ahead.arrived
    assert 10 < len(again.losses) < 30
    assert not beyond.arrived
    assert len(beyond.losses) == 80
    assert ended_well([first, again, ahead, beyond]) == [True] * 4
    assert Reference.among([first, again]) == Reference.among([first])


@pytest.mark.parametrize(("below", "arrived"), [(0.0, True), (0.1, False)])
def test_two_thirds_of_a_loss_that_is_never_negative_are_far_enough_anywhere(below: float, arrived: bool) -> None:
    """No later mark can call that too little; of a loss that may go below zero nobody knows."""
    slow = train_briefly([2.3 - n / 100 - below * (n == 70) * 30 for n in range(80)], rate=0.01, steps=80)
    fast = train_briefly([2.3 * math.exp(-n / 10) for n in range(80)], rate=1.0, steps=80, so_far=[slow])
    assert fast.arrived is arrived
    assert ended_well([slow, fast])[1]


def test_a_loss_that_is_not_finite_from_the_first_is_nobodys_rate() -> None:
    with pytest.raises(InputError, match="no rate can be blamed"):
        train_briefly(iter([math.nan]), rate=0.1, steps=5)


def test_a_loss_that_begins_at_zero_has_not_blown_up() -> None:
    found = train_briefly((-n / 10 for n in range(20)), rate=0.1, steps=20)
    assert len(found.losses) == 20
    assert found.way_down > 0
    assert len(train_briefly([0.0, 1.0, math.inf, 0.0], rate=0.1, steps=4).losses) == 3


def test_losses_may_be_tensors() -> None:
    losses: Any = torch.tensor([2.0, 1.5, 1.0], requires_grad=True)
    assert [type(loss) for loss in train_briefly(losses, rate=0.1, steps=3).losses] == [float] * 3
