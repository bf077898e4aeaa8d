"""L by Algorithm 1 on single steps: how much the gradient of a batch changes over the step taken with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from excite.errors import InputError
from excite.lipschitz.algorithm_1 import Algorithm1, local_maxima
from excite.lipschitz.protocol import LipschitzEstimate, Recording
from excite.trace import Trace

BLOCKS = (0.025, 0.035, 0.05, 0.07, 0.1)  # shares of all slopes; small, so that M blocks differ


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
