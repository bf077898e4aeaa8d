"""Find the rate within one training: raise it rung by rung, go back to the last good weights when it breaks, settle.

The paper's way to 1/L trains twice, this one once. The rate climbs from one that is known to train, and each rung is
held for a few steps; what is learned on the way is kept. The first rung on which the training breaks is rolled back:
η_max lies between that rung and the one below.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import variance
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from excite.errors import DivergedError, InputError
from excite.lipschitz.protocol import LipschitzEstimate
from excite.quantities import check_positive
from excite.schedules import Schedule, scale_base_rates

GROWTH = math.sqrt(2)  # factor from rung to rung
GENTLE = 2**0.25  # the same factor while nothing has been learned yet
AS_FAR = 0.9  # share of the best rung's fall in loss; a rung whose loss falls less has broken
LEARNED = 0.9  # share of the initial loss; above it nothing has been learned yet, and only a blow-up counts as a break
BLOWN_UP = 100.0  # multiple of the initial loss that counts as a blow-up
RUNG = 0.025  # length of a rung, as a share of the training
FEWEST_STEPS = 20  # length of the shortest rung
MOST_RUNGS = 16  # the climb ends after these, 40% of the training, even if training never broke
MOST_BREAKS = 24

Advice = Literal["go on", "keep", "roll back"]


@dataclass
class Climb:
    """The climb without model and optimizer: `observe` takes the loss of each step and sets the rate of the next one.

    A schedule starts from `rate`. `good` and `breaks` are rates that steps used, which a schedule may have changed.

    A rung breaks if a loss is not finite or 100 times the initial one (for a negative initial loss: 99 times its size
    above it). It also breaks if the mean loss of its second half has come less than nine tenths as far down from the
    initial loss as the best rung's, by more than the standard error of the difference; a whole training that ends short
    of this share has not converged either.

    Until the loss has fallen by a tenth, the rate grows more slowly and no weights are kept: after a break, training
    starts again from the initial weights at half the rate. A rate near the edge may break later, so after it has
    settled every break lowers it by one rung.
    """

    rate: float
    rung: int  # number of steps on a rung
    multiple: float  # the rate settles at this multiple of 1/L
    initial: float | None = None
    best: float | None = None  # mean loss of a rung's second half
    losses: list[float] = field(default_factory=list)  # on the present rung
    unkept: int = 0  # steps since weights were last kept
    rungs: int = 0  # number of finished rungs
    good: list[float] = field(default_factory=list)  # rates that held
    breaks: list[float] = field(default_factory=list)  # rates that did not
    lost: int = 0  # steps that were rolled back
    settled: bool = False

    def observe(self, loss: float, taken: float | None = None) -> Advice:
        """Judge the loss of a step at the rate `taken`; a schedule may have changed it from `rate`."""
        taken = self.rate if taken is None else taken
        self.losses.append(loss)
        self.unkept += 1
        if self.initial is None and math.isfinite(loss):
            self.initial = loss
        if self.initial is None:
            return self._break(taken)
        scale = abs(self.initial) or math.inf  # a loss that begins at 0 has no scale
        if not loss - self.initial < (BLOWN_UP - 1) * scale:
            return self._break(taken)
        return "go on" if len(self.losses) < self.rung else self._end_rung(self.initial, taken)

    def _end_rung(self, initial: float, taken: float) -> Advice:
        """Judge a whole rung by the mean loss of its second half."""
        late = self.losses[self.rung // 2 :]
        mean = sum(late) / len(late)
        best = mean if self.best is None else min(mean, self.best)
        if initial - best < (1 - LEARNED) * abs(initial):
            self._leave_rung()
            if self.rungs < MOST_RUNGS and not self.breaks:
                self.rate *= GENTLE
            return "go on"
        noise = math.sqrt(2 * variance(late) / len(late))
        if initial - mean < AS_FAR * (initial - best) - noise:
            return self._break(taken)
        self._leave_rung()
        self.best, self.unkept = best, 0
        if not self.settled:
            self.good.append(taken)
            if self.rungs < MOST_RUNGS:
                self.rate *= GROWTH
            else:
                self._settle()
        return "keep"

    def _leave_rung(self) -> None:
        self.losses = []
        self.rungs += 1

    def _break(self, taken: float) -> Advice:
        self.breaks.append(taken)
        self.lost += self.unkept
        self.unkept = 0
        self._leave_rung()
        if len(self.breaks) > MOST_BREAKS:
            raise DivergedError(f"Training broke at every rate down to {taken:.3g}. Start from a smaller rate.")
        if self.good and not self.settled:
            self._settle()
        else:
            self.rate /= GROWTH if self.settled else 2
        return "roll back"

    def _settle(self) -> None:
        self.settled = True
        self.rate = self.multiple / 2 * max(self.good)


class OnlineRate:
    """Finds the learning rate of `optimizer` while it trains `model`, and settles at `multiple`/L.

    Call `after_step(loss)` after every `optimizer.step()`. The rate grows rung by rung. When training breaks, model and
    optimizer go back to where the rung began, and the rate settles; the steps that are rolled back are the only cost.

    Start the optimizer at a small rate, such as a fifth of one that is known to train. The rates of all parameter
    groups are multiplied by the same factor, so they keep their ratios. A scheduler of torch that is passed in
    `schedulers` keeps its shape and continues from the new rate; do not use OneCycleLR or CyclicLR, which set rates of
    their own.

    With several processes (DistributedDataParallel), each has an OnlineRate, made after the model is wrapped. Pass the
    mean loss over all processes to `after_step`, so that they all take the same decision.

    Args:
        model: its weights and buffers are kept and restored.
        optimizer: of the model's parameters; its state is kept and restored as well.
        steps: the length of the whole training. Each rate is held for 2.5% of it, and for at least 20 steps.
        multiple: of 1/L, at most 2. The rate settles there.
        rung: how many steps to hold each rate, in place of 2.5%.
        schedulers: of this optimizer.

    >>> _ = torch.manual_seed(0)
    >>> theta = nn.Parameter(torch.ones(1))
    >>> optimizer = torch.optim.SGD([theta], lr=0.05)
    >>> online = OnlineRate(nn.ParameterList([theta]), optimizer, steps=800, multiple=2)
    >>> while not online.settled:  # the mean of ½ · 4 · (θ − x)² over noisy x: no rate above 2/4 trains
    ...     loss = 2 * (theta - 0.1 * torch.randn(8)).square().mean()
    ...     optimizer.zero_grad(); loss.backward(); optimizer.step()
    ...     _ = online.after_step(loss)
    >>> 0.5 / 2 <= online.rate <= 0.5
    True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        multiple: float = 1.0,
        rung: int | None = None,
        schedulers: Iterable[LRScheduler] = (),
    ) -> None:
        rung = max(int(RUNG * steps), FEWEST_STEPS) if rung is None else rung
        if not 4 <= rung <= steps:
            raise InputError(f"rung is {rung}; it must be at least 4 and at most the {steps} steps of the training.")
        if not 0 < multiple <= 2:
            raise InputError(f"multiple is {multiple}; it must be above 0 and at most 2, the largest convergent rate.")
        rate = float(optimizer.param_groups[0]["lr"])
        check_positive("lr of the optimizer's first group", rate)
        self.model, self.optimizer, self.schedulers = model, optimizer, tuple(schedulers)
        self.ladder = Climb(rate, rung, multiple)
        self.keep()

    @property
    def rate(self) -> float:
        """Rate of the first parameter group, before a schedule is applied."""
        return self.ladder.rate

    @property
    def settled(self) -> bool:
        return self.ladder.settled

    def after_step(self, loss: Tensor | float, *, taken: float | None = None) -> int:
        """Look at the loss of the step just taken, and change the rate.

        Args:
            loss: before the step.
            taken: the rate of the step in the first parameter group, where a scheduler has changed it since.

        Returns:
            How many steps were rolled back, 0 for most calls.
        """
        before, lost = self.ladder.rate, self.ladder.lost
        taken = float(self.optimizer.param_groups[0]["lr"]) if taken is None else taken
        verdict = self.ladder.observe(loss.item() if isinstance(loss, Tensor) else loss, taken)
        if verdict == "keep":
            self.keep()
        elif verdict == "roll back":
            self._put_back()
        if self.rate != before:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.rate / before
            for scheduler in self.schedulers:
                scale_base_rates(scheduler, self.rate / before)
        return self.ladder.lost - lost

    def keep(self) -> None:
        """Copy model and optimizer as they are now; the next break goes back to them."""
        self._kept = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}
        self.ladder.unkept = 0

    def follow(self, schedule: Schedule) -> Schedule:
        """`schedule`, rescaled so that it starts at the present rate."""
        return lambda epoch: self.rate * (schedule(epoch) / schedule(0))

    @property
    def estimate(self) -> LipschitzEstimate:
        """L = 2/η_max as the climb saw it: between the largest rate that held and the one that broke."""
        ladder = self.ladder
        if not ladder.settled:
            raise InputError("The rate has not settled yet; train on, or hold each rung for fewer steps.")
        largest = max(ladder.good)
        broke = min((rate for rate in ladder.breaks if rate > largest), default=None)
        lowest = largest if broke else min([largest, *ladder.breaks])
        if broke:
            end = f" and broke at {broke:.3g}"
        elif ladder.breaks:
            end = f" but broke at {lowest:.3g} too, so the edge is not known"
        else:
            end = " and never broke, so this is only an upper bound"
        return LipschitzEstimate(
            constant=2 / largest,
            interval=(2 / broke if broke else 0.0, 2 / lowest),
            method="online",
            identified=broke is not None,
            basis=f"one climb in rungs of {ladder.rung} steps held at {largest:.3g}{end}",
            details=asdict(ladder),
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint must keep to go on bit-identical: tensors, and plain facts."""
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        return dict(self._kept), {"ladder": asdict(self.ladder), "rates": rates}

    def own_state(self) -> dict[str, Tensor]:
        """The tensors of `state` that differ between processes that train one model: buffers, such as batch-norm's."""
        buffers = {f"model.{name}" for name, _ in self.model.named_buffers()}
        return {name: tensor.cpu() for name, tensor in self._kept.items() if name in buffers}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.ladder = Climb(**facts["ladder"])
        self._kept = dict(tensors)
        for group, rate in zip(self.optimizer.param_groups, facts["rates"], strict=True):
            group["lr"] = rate

    def _put_back(self) -> None:
        known = {name.rpartition(".")[0] for name in self._kept}
        for place, parameter in self._places():
            if place not in known:
                self.optimizer.state.pop(parameter, None)  # momentum and such that began on the rung that broke
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if name in self._kept:
                    tensor.copy_(self._kept[name])

    def _tensors(self) -> dict[str, Tensor]:
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict(keep_vars=True).items()}
        for place, parameter in self._places():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    named[f"{place}.{key}"] = value
        return named

    def _places(self) -> Iterator[tuple[str, Tensor]]:
        for number, group in enumerate(self.optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                yield f"optimizer.{number}.{place}", parameter
