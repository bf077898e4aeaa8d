import math
from itertools import count
from typing import Any

import pytest
import torch

from excite.errors import InputError
from excite.lipschitz.brief_run import Before, BriefRun, Yardstick, converged, train_briefly


def run(rate: float, final: float, initial: float = 2.3) -> BriefRun:
    return BriefRun(rate, (initial, *[final] * 4), 16)


def test_the_final_loss_is_the_mean_over_the_last_quarter() -> None:
    rising = train_briefly((20.0 + n for n in count()), rate=0.1, steps=20)
    assert rising.final == pytest.approx((35 + 36 + 37 + 38 + 39) / 5)
    assert Yardstick.of([rising]) is None


@pytest.mark.parametrize("last", [math.nan, math.inf, 300.0])
def test_a_run_that_blows_up_is_over_and_did_not_converge(last: float) -> None:
    blown = train_briefly(iter([2.3, 2.0, last, 1.0, 1.0]), rate=0.1, steps=5)
    assert len(blown.losses) == 3
    assert blown.final == math.inf
    assert converged([blown, run(0.5, 1.0)]) == [False, True]


def test_a_jump_from_which_a_run_recovers_is_forgiven() -> None:
    jumps = [2.3 * math.exp(-n / 10) + 20 * (n == 25) for n in range(60)]
    assert converged([train_briefly(iter(jumps), rate=0.1, steps=60)]) == [True]


@pytest.mark.parametrize(("loss", "taken"), [(201.9, 5), (202.1, 2)])
def test_a_rise_by_100_times_the_initial_loss_ends_a_run(loss: float, taken: int) -> None:
    assert len(train_briefly([2.0, loss, 1.0, 1.0, 1.0], rate=0.1, steps=5).losses) == taken


def test_longer_runs_are_judged_by_shorter_ones_but_not_the_other_way_round() -> None:
    fell, stayed = ([BriefRun(0.1, (2.3, *[final] * 4), steps) for steps in (16, 64)] for final in (1.0, 2.2))
    assert converged([fell[0], stayed[1]]) == [True, False]
    assert converged([stayed[0], fell[1]]) == [True, True]


def test_a_run_needs_nine_tenths_of_the_best_way_down() -> None:
    assert converged([run(0.2, 1.3), run(0.8, 1.39), run(0.8, 1.41)]) == [True, True, False]


def test_lower_rates_need_less_and_very_low_rates_only_a_loss_that_has_not_risen() -> None:
    slower = [run(0.3, 1.77), run(0.3, 1.82), run(0.05, 2.3), run(0.05, 2.4)]  # 0.95 · 0.75² − 0.05 = 0.48
    assert converged([run(0.4, 1.3), *slower])[1:] == [True, False, True, False]


def test_a_run_from_trained_weights_must_keep_what_they_know() -> None:
    """All end equally low, but one forgets first; a single bad batch is forgiven."""
    keeps = BriefRun(0.2, (0.5, *[0.3] * 3, *[0.1] * 12), 16)
    forgets = BriefRun(0.8, (0.5, *[3.0] * 3, *[0.1] * 12), 16)
    stumbles = BriefRun(0.4, (0.5, 0.2, 1.0, 0.2, *[0.1] * 12), 16)
    assert converged([keeps, forgets, stumbles]) == [True, True, True]
    assert converged([keeps, forgets, stumbles], before=Before(0.5, 0.1)) == [True, False, True]


def test_noise_of_batches_before_training_does_not_count_against_low_rates() -> None:
    """Single batches say little about what trained weights know; the mean loss of many does."""
    idle = [BriefRun(1e-6, (initial, *[0.5] * 15), 16) for initial in (0.1, 0.3, 0.1)]
    runs = [*idle, BriefRun(0.1, (0.1, *[0.3] * 3, *[0.1] * 12), 16)]
    assert converged(runs) == [False, False, False, True]
    assert converged(runs, before=Before(0.5, 0.4)) == [True, True, True, True]
    assert converged(idle, before=Before(0.5, 0.4)) == [True, True, True]


def test_all_runs_are_measured_from_the_same_initial_loss() -> None:
    """One batch says little about the loss before training: a lucky first batch decides nothing."""
    runs = [run(0.4, 1.3, initial=2.0), run(0.8, 1.39, initial=2.6), run(0.8, 1.41)]
    assert converged(runs) == [True, True, False]


def test_a_difference_within_the_noise_of_the_best_run_is_no_failure() -> None:
    noisy = BriefRun(0.2, (2.3, 1.0, 1.6, 1.0, 1.6), 16)
    steady = run(0.2, 1.3)
    # The standard error is √(2 · 0.12 / 4) = 0.245, so a run needs 0.9 − 0.245 = 0.655.
    assert converged([noisy, run(0.8, 1.63), run(0.8, 1.66)]) == [True, True, False]
    assert not converged([steady, run(0.8, 1.5)])[1]


def test_if_no_loss_fell_those_that_rose_did_not_converge() -> None:
    came_back = BriefRun(0.3, (2.3, 2.5, *[2.3] * 14), 16)
    assert converged([run(0.1, 2.3), run(0.2, 2.5), came_back]) == [True, False, False]


def test_a_run_that_falls_behind_may_recover() -> None:
    """As networks with batch-norm do when a schedule decays after half of the run."""
    best = train_briefly((2.3 * math.exp(-n / 10) for n in count()), rate=0.1, steps=60)
    late = train_briefly([2.3] * 30 + [2.3 * math.exp(-n / 5) for n in range(30)], rate=0.4, steps=60, so_far=[best])
    assert converged([best, late]) == [True, True]


def test_if_the_first_loss_is_not_finite_no_rate_is_blamed() -> None:
    with pytest.raises(InputError, match="first loss"):
        train_briefly(iter([math.nan]), rate=0.1, steps=5)


def test_a_loss_that_begins_at_zero_has_not_blown_up() -> None:
    assert len(train_briefly((-n / 10 for n in range(20)), rate=0.1, steps=20).losses) == 20
    assert len(train_briefly([0.0, 1.0, math.inf, 0.0], rate=0.1, steps=4).losses) == 3


def test_losses_may_be_tensors() -> None:
    losses: Any = torch.tensor([2.0, 1.5, 1.0], requires_grad=True)
    assert [type(loss) for loss in train_briefly(losses, rate=0.1, steps=3).losses] == [float] * 3
