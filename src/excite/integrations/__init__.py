"""Lightning, Hugging Face and its Hub, RobustBench and loggers, one optional file each; here is what they share."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from excite.errors import ExciteError, InputError
from excite.excitation import certify
from excite.lipschitz import LipschitzEstimate, OnlineRate
from excite.quantities import check_positive
from excite.rescaling import check_reliable, peak_rate, scale_rates
from excite.schedules import ROUNDING
from excite.trace import Recorder, Trace

__all__ = ["MissingExtraError", "estimate_values", "trace_values"]

logger = logging.getLogger(__name__)


class MissingExtraError(ExciteError, ImportError):
    """An optional package is not installed."""

    exit_code = 2


@contextlib.contextmanager
def needs(package: str) -> Iterator[None]:
    """Turn a failing import inside into an error that says which command installs the package.

    >>> with needs("excite[lightning]"):
    ...     import nothing_like_it
    Traceback (most recent call last):
    ...
    excite.integrations.MissingExtraError: nothing_like_it is missing. Run: pip install "excite[lightning]"
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or str(error)
        raise MissingExtraError(f'{missing} is missing. Run: pip install "{package}"', name=error.name) from error


def estimate_values(estimate: LipschitzEstimate) -> dict[str, float]:
    """Values to log: L, its interval, and its learning rates."""
    low, high = estimate.interval
    return {
        "excite/L": estimate.constant,
        "excite/L_low": low,
        "excite/L_high": high,
        "excite/rate_1_over_L": estimate.learning_rate(),
        "excite/rate_2_over_L": estimate.learning_rate(2),
    }


def trace_values(trace: Trace) -> dict[str, float]:
    """Values to log: the shares of acute and certified steps; none before the third moment or after divergence.

    θ* is the last recorded moment, so the shares change from epoch to epoch; the final ones are the most meaningful.
    """
    if len(trace) < 3 or not np.isfinite(trace.squared_parameter_distances).all():
        return {}
    path = certify(trace)
    return {"excite/acuteness": path.angles.fraction, "excite/certified": float(path.certified.mean())}


def _largest_rate(optimizer: Optimizer) -> float:
    return max(float(group["lr"]) for group in optimizer.param_groups)


class FindsRateBefore:
    """Base of callbacks that find L before the training, set the rates, and record the training."""

    estimate: LipschitzEstimate | None = None
    recorder: Recorder | None = None

    def __init__(
        self,
        multiple: float = 1.0,
        *,
        record: bool = True,
        find: dict[str, Any] | None = None,
        allow_unidentified: bool = False,
    ) -> None:
        self.multiple, self.record, self.find = multiple, record, find or {}
        self.allow_unidentified = allow_unidentified

    @property
    def trace(self) -> Trace | None:
        return self.recorder.trace if self.recorder else None

    def _find_rate(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], find: Callable[[], LipschitzEstimate]
    ) -> dict[str, float]:
        """Find L; scale optimizer and schedulers so that the largest rate is `multiple`/L. Returns values to log."""
        # Before time is spent on a search, this refuses what cannot be rescaled.
        peak = max(map(peak_rate, schedulers)) if schedulers else _largest_rate(optimizer)
        self.estimate = find()
        check_reliable(self.estimate, allow_unidentified=self.allow_unidentified)
        rate = self.estimate.learning_rate(self.multiple)
        scale_rates(optimizer, schedulers, rate / peak)
        logger.info("%s", self.estimate)
        return estimate_values(self.estimate)

    def _start_recording(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.record:
            self.recorder = Recorder(model, optimizer, slopes_per_epoch=0)

    def _record_epoch(self) -> dict[str, float]:
        """Record the end of an epoch, if recording is on, and return values to log."""
        if self.recorder is None:
            return {}
        self.recorder.record()
        return trace_values(self.recorder.trace)

    def _stop_recording(self) -> None:
        if self.recorder:
            self.recorder.close()


class FindsRateDuring:
    """Base of callbacks that find the rate during the training, by `excite.OnlineRate`."""

    def __init__(self, multiple: float, start: float, rung: int | None) -> None:
        check_positive("start", start)
        self.multiple, self.start, self.rung = multiple, start, rung
        self.online: OnlineRate | None = None
        self._losses: list[Tensor] = []  # of the batches of the next step

    @property
    def estimate(self) -> LipschitzEstimate | None:
        return self.online.estimate if self.online and self.online.settled else None

    def _begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        *,
        steps: int,
        saved: dict[str, Any] | None,
    ) -> None:
        """Start the search, or continue a `saved` one."""
        if saved is None:
            rises = any(peak_rate(scheduler) > _largest_rate(optimizer) * (1 + ROUNDING) for scheduler in schedulers)
            if rises or any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
                raise InputError(
                    "The rate is found from the first step on, so the schedule must start at its largest rate and be "
                    "known: leave out the warm-up (OneCycleLR and CyclicLR warm up, too) or ReduceLROnPlateau."
                )
            scale_rates(optimizer, schedulers, self.start)
        self.online = OnlineRate(
            model, optimizer, steps=steps, multiple=self.multiple, rung=self.rung, schedulers=schedulers
        )
        if saved is not None:
            self.online.restore(**saved)
        self._losses = []

    def _after_step(self, loss: Tensor, taken: float | None = None) -> dict[str, float]:
        """Report the loss of a step; returns values to log when the rate settles."""
        assert self.online is not None  # noqa: S101
        settled_before = self.online.settled
        self.online.after_step(loss, taken=taken)
        self._losses = []
        if settled_before or not self.online.settled:
            return {}
        logger.info("%s", self.online.estimate)
        return estimate_values(self.online.estimate)

    def state_dict(self) -> dict[str, Any]:
        """The search, to continue it with `_begin(saved=…)`; empty before training has started."""
        if self.online is None:
            return {}
        tensors, facts = self.online.state()
        return {"tensors": tensors, "facts": facts}


@contextlib.contextmanager
def silent(owner: object, *methods: str) -> Iterator[None]:
    """Inside, these methods that log do nothing, because the search is not part of the training."""
    for name in methods:
        object.__setattr__(owner, name, lambda *_arguments, **_options: None)
    try:
        yield
    finally:
        for name in methods:
            object.__delattr__(owner, name)
