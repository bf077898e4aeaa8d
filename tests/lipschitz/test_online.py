"""The rate that finds its edge during the training: on a quadratic the edge is known."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, SequentialLR, StepLR

from excite import schedules
from excite.errors import DivergedError, InputError
from excite.lipschitz.online import MOST_BREAKS, MOST_RUNGS, Climb, OnlineRate

CURVATURE = 4.0  # so that L = 4 and no rate above 2/4 trains


def noisy_quadratic(rate: float, *, momentum: float = 0.0, multiple: float = 2.0, seed: int = 0) -> "Training":
    theta = nn.Parameter(torch.ones(3))
    return Training(theta, SGD([theta], lr=rate, momentum=momentum), multiple, seed)


class Training:
    def __init__(self, theta: nn.Parameter, optimizer: Optimizer, multiple: float, seed: int) -> None:
        self.theta, self.optimizer = theta, optimizer
        self.generator = torch.Generator().manual_seed(seed)
        self.online = OnlineRate(nn.ParameterList([theta]), optimizer, steps=800, multiple=multiple)

    def steps(self, count: int) -> Iterator[float]:
        for _ in range(count):
            x = 0.1 * torch.randn(8, 3, generator=self.generator)
            loss = CURVATURE / 2 * (self.theta - x).square().mean(0).sum()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.online.after_step(loss)
            yield loss.item()

    def run(self, count: int = 600) -> "Training":
        for _ in self.steps(count):
            pass
        return self


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("momentum", "edge"), [(0.0, 2 / CURVATURE), (0.5, 3 / CURVATURE)])
def test_it_settles_at_the_edge_of_its_optimizer(momentum: float, edge: float, seed: int) -> None:
    """2/λ for plain gradient descent, 2(1 + β)/λ with heavy-ball momentum; a rung is a factor √2."""
    training = noisy_quadratic(0.02, momentum=momentum, seed=seed).run()
    assert training.online.settled
    assert edge / 2 <= training.online.ladder.good[-1] <= edge * 1.01
    assert training.online.estimate.identified
    low, high = training.online.estimate.interval
    assert low <= 2 / edge * 1.01
    assert high >= 2 / edge / 1.01


@pytest.mark.parametrize("schedule", [(CosineAnnealingLR, 20), (StepLR, 4)])
def test_under_a_schedule_l_comes_from_the_rates_really_taken(schedule: tuple[Any, int]) -> None:
    """One that decays during the climb: the edge is where it is, or was not reached."""
    training = noisy_quadratic(0.02)
    kind, epochs = schedule
    scheduler = kind(training.optimizer, epochs)
    taken = []
    for step, _ in enumerate(training.steps(600)):
        taken.append(training.optimizer.param_groups[0]["lr"])
        if step % 40 == 39:
            scheduler.step()
    estimate = training.online.estimate
    assert max(training.online.ladder.good) <= max(taken)
    assert estimate.interval[0] <= CURVATURE <= estimate.interval[1] * 1.01


def test_a_multiple_of_1_settles_at_half_of_it() -> None:
    once, twice = (noisy_quadratic(0.02, multiple=multiple).run().online for multiple in (1.0, 2.0))
    assert once.ladder.good == twice.ladder.good
    assert once.rate == pytest.approx(once.estimate.learning_rate(1))
    assert twice.rate == pytest.approx(once.rate * 2)


def test_what_was_learned_is_kept_and_what_broke_is_rolled_back() -> None:
    training = noisy_quadratic(0.02).run()
    assert float(training.theta.detach().abs().max()) < 0.5
    assert 0 < training.online.ladder.lost <= 20 * len(training.online.ladder.breaks)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGD, {"momentum": 0.9, "dampening": 0.5}),
        (torch.optim.Adam, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.Rprop, {}),
    ],
)
def test_whoever_breaks_at_once_begins_anew_at_half_the_rate(kind: Any, options: dict[str, float]) -> None:
    def train(optimizer: Optimizer, theta: nn.Parameter) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            (theta - 0.3).square().sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    theta, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = kind([theta], lr=0.1, **options)
    online = OnlineRate(nn.ParameterList([theta]), optimizer, steps=800)
    train(optimizer, theta)
    online.after_step(math.nan)
    train(optimizer, theta)
    train(kind([other], lr=0.05, **options), other)
    assert torch.equal(theta, other)


def test_a_start_past_the_edge_comes_down_first() -> None:
    online = noisy_quadratic(8.0).run().online
    assert online.settled
    assert online.rate <= 2 / CURVATURE * 1.01


def test_a_rate_that_breaks_later_goes_down_a_rung() -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=2.0)
    for loss in [2.0, 1.0, 0.5, 0.5] + [0.5] * 4 + [math.inf]:  # 0.1 and 0.14 hold, 0.2 breaks
        ladder.observe(loss)
    assert ladder.settled
    settled = ladder.rate
    verdicts = [ladder.observe(loss) for loss in (0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0)]
    assert verdicts == ["go on", "go on", "go on", "keep", "go on", "go on", "go on", "roll back"]
    assert ladder.rate == pytest.approx(settled / math.sqrt(2))


@pytest.mark.parametrize(("reached", "advice"), [(0.89, "roll back"), (0.91, "keep")])
def test_a_rung_breaks_below_nine_tenths_of_the_best_rungs_way_down(reached: float, advice: str) -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    for loss in (2.0, 1.0, 1.0, 1.0):
        ladder.observe(loss)
    assert [ladder.observe(2.0 - reached) for _ in range(4)][-1] == advice


@pytest.mark.parametrize(("mean", "advice"), [(1.17, "keep"), (1.19, "roll back")])
def test_a_difference_within_the_noise_of_a_rung_is_no_break(mean: float, advice: str) -> None:
    """The best rung has come down by 1 from 2, so 1.1 would do; the standard error is √(2 · 0.0133 / 4) = 0.082."""
    ladder = Climb(rate=0.1, rung=8, multiple=1.0)
    for loss in (2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0):
        ladder.observe(loss)
    assert ladder.best == 1.0
    assert [ladder.observe(mean + sign * 0.1) for sign in (1, -1) * 4][-1] == advice


@pytest.mark.parametrize(("loss", "advice"), [(1.79, "keep"), (1.81, "go on")])
def test_a_loss_that_fell_by_a_tenth_has_learned(loss: float, advice: str) -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    assert [ladder.observe(value) for value in (2.0, 2.0, loss, loss)][-1] == advice


@pytest.mark.parametrize(("loss", "advice"), [(199.9, "go on"), (200.1, "roll back")])
def test_100_times_the_initial_loss_breaks_a_rung(loss: float, advice: str) -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    assert [ladder.observe(value) for value in (2.0, loss)][-1] == advice


def test_on_the_initial_plateau_the_rate_grows_gently_and_no_weights_are_kept() -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    assert {ladder.observe(2.3) for _ in range(16)} == {"go on"}
    assert ladder.rate == pytest.approx(0.2)
    assert ladder.observe(math.inf) == "roll back"
    assert ladder.lost == 17  # back to the initial weights
    assert ladder.rate == pytest.approx(0.1)
    assert {ladder.observe(2.3) for _ in range(16)} == {"go on"}
    assert ladder.rate == pytest.approx(0.1)  # it has broken above
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    for _ in range(4 * (MOST_RUNGS + 4)):
        ladder.observe(2.3)
    assert ladder.rate == pytest.approx(0.1 * 2 ** ((MOST_RUNGS - 1) / 4))


def test_a_climb_that_never_breaks_ends_after_so_many_rungs() -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    for step in range(4 * MOST_RUNGS):
        ladder.observe(2.0 * 0.9**step)
    assert ladder.settled
    assert ladder.good[-1] == pytest.approx(0.1 * math.sqrt(2) ** (MOST_RUNGS - 1))
    assert ladder.rate == ladder.good[-1] / 2


def test_a_schedule_follows_the_rate_that_was_found() -> None:
    theta = nn.Parameter(torch.ones(1))
    online = OnlineRate(nn.ParameterList([theta]), SGD([theta], lr=0.1), steps=100, rung=4)
    schedule = online.follow(schedules.step(0.5, milestones=(2,)))
    for loss in (2.0, 1.0, 0.5, 0.5):
        online.after_step(loss)
    assert [schedule(epoch) for epoch in range(3)] == pytest.approx([online.rate, online.rate, online.rate / 10])


SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "step": lambda optimizer: StepLR(optimizer, 3, 0.5),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 8, eta_min=0.01),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "sequence": lambda optimizer: SequentialLR(
        optimizer, [StepLR(optimizer, 3, 0.5), LambdaLR(optimizer, lambda step: 0.1**step)], [6]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_keeps_its_shape_from_the_rate_that_was_found(name: str) -> None:
    theta, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer, plain = SGD([theta], lr=0.1), SGD([other], lr=0.1)
    scheduler, shape = SCHEDULERS[name](optimizer), SCHEDULERS[name](plain)
    online = OnlineRate(nn.ParameterList([theta]), optimizer, steps=100, rung=4, schedulers=[scheduler])
    for loss in (2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5):
        optimizer.step()
        plain.step()
        online.after_step(loss)
        scheduler.step()
        shape.step()
        assert scheduler.get_last_lr() == pytest.approx([online.rate / 0.1 * rate for rate in shape.get_last_lr()])
    assert online.rate == pytest.approx(0.2)


def test_the_rate_of_the_step_may_be_stated() -> None:
    theta = nn.Parameter(torch.ones(1))
    online = OnlineRate(nn.ParameterList([theta]), SGD([theta], lr=0.1), steps=100, rung=4)
    for loss in (2.0, 1.0, 0.5, 0.5):
        online.after_step(loss, taken=0.05)
    assert online.ladder.good == [0.05]


def test_it_goes_on_bit_identical_from_its_state() -> None:
    whole = noisy_quadratic(0.02).run()
    first = noisy_quadratic(0.02).run(123)
    tensors, facts = first.online.state()
    second = noisy_quadratic(0.02)
    with torch.no_grad():
        second.theta.copy_(first.theta)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.generator.set_state(first.generator.get_state())
    second.online.restore(tensors, facts)
    second.run(600 - 123)
    assert torch.equal(second.theta, whole.theta)
    assert second.online.ladder == whole.online.ladder


def test_parameter_groups_keep_their_ratio() -> None:
    one, two = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = SGD([{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.01}])
    online = OnlineRate(nn.ParameterList([one, two]), optimizer, steps=100, rung=4)
    for loss in (2.0, 1.0, 0.5, 0.5):
        online.after_step(loss)
    first, second = (group["lr"] for group in optimizer.param_groups)
    assert first == pytest.approx(0.1 * math.sqrt(2))
    assert second == pytest.approx(first / 10)


def test_a_loss_that_is_never_finite_ends() -> None:
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    for _ in range(MOST_BREAKS):
        ladder.observe(math.nan)
    with pytest.raises(DivergedError, match="smaller rate"):
        ladder.observe(math.nan)


def test_a_rate_of_0_has_nowhere_to_climb_from() -> None:
    theta = nn.Parameter(torch.ones(1))
    with pytest.raises(InputError, match=r"lr of the optimizer's first group is 0"):
        OnlineRate(nn.ParameterList([theta]), SGD([theta], lr=0.0), steps=800)


@pytest.mark.parametrize("options", [{"rung": 2}, {"multiple": 3.0}, {"multiple": 0.0}, {"steps": 10}])
def test_options_that_mean_nothing(options: dict[str, float]) -> None:
    theta = nn.Parameter(torch.ones(1))
    with pytest.raises(InputError):
        OnlineRate(nn.ParameterList([theta]), SGD([theta], lr=0.1), **({"steps": 800} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("shift", [-5.0, -4.0, -2.0])
def test_a_negative_loss_is_no_break(shift: float) -> None:
    """The loss begins at 4 + shift and ends at shift."""
    ladder = Climb(rate=0.1, rung=4, multiple=1.0)
    advice = {ladder.observe(shift + 4.0 * 0.9**step) for step in range(4 * MOST_RUNGS)}
    assert advice == {"go on", "keep"}
    assert ladder.settled
    assert ladder.observe(math.inf) == "roll back"


def test_a_climb_that_broke_only_later_does_not_say_that_it_never_broke() -> None:
    theta = nn.Parameter(torch.ones(1))
    online = OnlineRate(nn.ParameterList([theta]), SGD([theta], lr=0.1), steps=800, rung=4)
    for step in range(4 * MOST_RUNGS):
        online.after_step(10.0 * 0.97**step)
    settled = online.rate
    assert "never broke" in str(online.estimate)
    online.after_step(1e9)
    assert f"but broke at {settled:.3g} too" in str(online.estimate)
    assert online.estimate.interval == (0.0, 2 / settled)
    assert not online.estimate.identified
