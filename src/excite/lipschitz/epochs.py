"""L by Algorithm 1, from secants between randomly paired epochs as in the paper's text, or from single steps.

`Epochs(protocol="text")` is the paper's text to the letter, "fitted" fits the same secants properly. "authors" follows
the released code: gradients with respect to the pixels, slopes that combine gradients and parameters of different
epochs, and the endpoint at which the optimizer happens to stop.
"""

from collections.abc import Sequence
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
PAPER_POINTS = (80, 100, 120, 150, 164)  # N in it
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

    def points(self, recording: Recording) -> Sequence[int]:
        most = recording.moments // 2
        pairs = {max(1, min(round(points / PAPER_MOMENTS * recording.moments / 2), most)) for points in PAPER_POINTS}
        return self.chosen_points or tuple(2 * pair for pair in sorted(pairs))

    def check(self, recording: Recording) -> None:
        if recording.moments < 2:
            raise InputError(
                f"{recording.says} {recording.moments} moments; a secant needs 2. Call recorder.record() every epoch."
            )
        if self.protocol == "authors" and not recording.input_gradients:
            raise InputError(
                f'{recording.says} no gradients with respect to the pixels, which protocol="authors" uses. '
                "Set record.input_gradients = true, or pass Recorder(…, input_gradients=True)."
            )
        largest = max(self.points(recording))
        if largest > recording.moments:
            raise InputError(
                f"{recording.says} {recording.moments} moments; N={largest} needs at least {largest}. "
                f"Record longer or pass n_points={recording.moments - recording.moments % 2}."
            )

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        recording = Recording.of(evidence)
        self.check(recording)
        run = evidence.parameter_distances
        if self.protocol == "authors":
            rise = evidence.input_gradient_distances
            slopes, draw = ratios(rise, run), unmatched_maxima(rise, run)
        else:
            slopes = secants(evidence)
            draw = secant_maxima(slopes)
        return self.estimate(
            draw,
            method=_METHODS[self.protocol],
            largest_slope=float(slopes.max()),
            n_points=self.points(recording),
            protocol=self.protocol,
        )


def secants(trace: Trace) -> NDArray[np.float64]:
    """‖∇l(θⁱ) − ∇l(θʲ)‖ / ‖θⁱ − θʲ‖ for every two moments, T×T; 0 if the parameters did not move."""
    return ratios(trace.gradient_distances, trace.parameter_distances)


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm1):
    """‖g_B(θᵏ⁺¹) − g_B(θᵏ)‖ / ‖θᵏ⁺¹ − θᵏ‖ at sampled steps, secants of the loss of one batch; N/2 per block."""

    title: ClassVar[str] = "local (Algorithm 1, single steps)"
    about: ClassVar[str] = "Algorithm 1 on the slopes of single steps, each for the loss of one batch."

    def points(self, recording: Recording) -> Sequence[int]:
        blocks = {max(1, int(share * recording.slopes)) for share in BLOCKS}
        return self.chosen_points or tuple(2 * block for block in sorted(blocks))  # two points per slope

    def check(self, recording: Recording) -> None:
        if recording.slopes == 0:
            raise InputError(
                f"{recording.says} no local slopes. Call recorder.after_step(closure) after each step; if you did, the "
                "steps were too small to change the gradient: record at a larger learning rate."
            )
        largest = max(self.points(recording))
        if largest > 2 * recording.slopes:
            raise InputError(
                f"{recording.says} {recording.slopes} local slopes; N={largest} needs {largest // 2}. "
                f"Record more slopes or pass n_points={2 * recording.slopes} or less."
            )

    def __call__(self, evidence: Trace) -> LipschitzEstimate:
        recording = Recording.of(evidence)
        self.check(recording)
        return self.estimate(
            local_maxima(evidence.slopes),
            method="local",
            largest_slope=float(evidence.slopes.max()),
            n_points=self.points(recording),
        )
