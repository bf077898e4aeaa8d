"""L by Algorithm 1, from secants between randomly paired epochs as in the paper's text, or from single steps.

`Epochs(protocol="text")` is the paper's text to the letter, "fitted" fits the same secants properly. "authors" follows
the released code: gradients with respect to the pixels, slopes that combine gradients and parameters of different
epochs, and the endpoint at which the optimizer happens to stop.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from excite.errors import InputError
from excite.lipschitz.algorithm_1 import Algorithm1, Protocol, local_maxima, ratios, secant_maxima, unmatched_maxima
from excite.lipschitz.protocol import LipschitzEstimate, Recording
from excite.registry import check_choice
from excite.trace import Trace

PAPER_MOMENTS = 164  # epochs behind the paper's Figure 5
PAPER_POINTS = (80, 100, 120, 150, 164)  # the values of N there
_METHODS = {"fitted": "epochs", "text": "epochs (the text)", "authors": "epochs (authors' protocol)"}
BLOCKS = (0.025, 0.035, 0.05, 0.07, 0.1)  # block sizes of `Local` as shares of all slopes; small, so that blocks differ


@dataclass(frozen=True, kw_only=True)
class Epochs(Algorithm1):
    """‖∇l(θⁱ) − ∇l(θʲ)‖ / ‖θⁱ − θʲ‖ between two epochs; a block is N epochs, paired at random.

    By default, N takes the values of the paper's Figure 5, in proportion to the number of recorded epochs.
    """

    title: ClassVar[str] = "epochs (Algorithm 1, secants)"
    about: ClassVar[str] = "Algorithm 1 on secants between epochs of the baseline: fitted, as the text, or as released."

    protocol: Protocol = "fitted"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("protocol", Protocol, self.protocol)

    def sizes(self, recording: Recording) -> tuple[int, set[int]]:
        if recording.moments < 2:
            raise InputError(
                f"{recording.says} too few moments ({recording.moments}); a secant needs 2. "
                "Train for more epochs, with recorder.record() after each."
            )
        if self.protocol == "authors" and not recording.input_gradients:
            raise InputError(
                f'{recording.says} no gradients with respect to the pixels, which protocol="authors" uses. '
                "Set record.input_gradients = true, or Recorder(…, input_gradients=True)."
            )
        most = recording.moments // 2
        pairs = [round(points / PAPER_MOMENTS * recording.moments / 2) for points in PAPER_POINTS]
        return recording.moments, {2 * max(1, min(pair, most)) for pair in pairs}

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        points = self.points(Recording.of(evidence))
        if self.protocol == "authors":
            rise, run = evidence.input_gradient_distances, evidence.parameter_distances
            slopes, draw = ratios(rise, run), unmatched_maxima(rise, run)
        else:
            slopes = secants(evidence)
            draw = secant_maxima(slopes)
        return self.estimate(
            draw,
            method=_METHODS[self.protocol],
            largest_slope=float(slopes.max()),
            n_points=points,
        )


def secants(trace: Trace) -> NDArray[np.float64]:
    """‖∇l(θⁱ) − ∇l(θʲ)‖ / ‖θⁱ − θʲ‖ for every two moments, T×T; 0 if the parameters did not move."""
    return ratios(trace.gradient_distances, trace.parameter_distances)


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm1):
    """‖g_B(θᵏ⁺¹) − g_B(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖ at sampled steps, secants of the loss of one batch; N/2 per block."""

    title: ClassVar[str] = "local (Algorithm 1, single steps)"
    about: ClassVar[str] = "Algorithm 1 on the slopes of single steps, each for the loss of one batch."

    def sizes(self, recording: Recording) -> tuple[int, set[int]]:
        if recording.slopes == 0:
            raise InputError(
                f"{recording.says} no local slopes. Call recorder.after_step(closure) after each step; if you did, "
                "raise the learning rate: the steps were too small to change the gradient."
            )
        return 2 * recording.slopes, {2 * max(1, int(share * recording.slopes)) for share in BLOCKS}

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        points, slopes = self.points(Recording.of(evidence)), evidence.slopes
        return self.estimate(local_maxima(slopes), method="local", largest_slope=float(slopes.max()), n_points=points)
