"""Does an estimate of L agree with the trainings of its run? They should converge up to 2/L and not far beyond."""

from collections.abc import Iterable
from dataclasses import dataclass

from excite.lipschitz.estimate import LipschitzEstimate
from excite.runs.folder import ArmFolder

ROUNDING = 1e-9


@dataclass(frozen=True)
class Standing:
    """Whether an estimate is to be trusted, and why not."""

    trusted: bool
    words: str

    def __str__(self) -> str:
        return f"{'yes' if self.trusted else 'no'}: {self.words}"


def standing(
    estimate: LipschitzEstimate, arms: Iterable[ArmFolder], measured: LipschitzEstimate | None = None
) -> Standing:
    """What the data say by themselves, unless a training of the run has shown that 2/L is off.

    `measured` is an estimate that short trainings gave: one whose interval lies wholly elsewhere is off, too.
    """
    trained = [arm for arm in arms if not arm.arm.control]  # whose batches may be of another size than L's
    edge = estimate.learning_rate(2)
    diverged = [arm.rate for arm in trained if arm.problem and arm.rate <= edge * (1 + ROUNDING)]
    if diverged:
        return Standing(False, f"training diverged at {min(diverged):.3g}, so 2/L = {edge:.3g} is too high")
    highest = 2 / estimate.interval[0] if estimate.interval[0] > 0 else edge
    converged = [arm.rate for arm in trained if not arm.problem and arm.rate > highest * (1 + ROUNDING)]
    if converged:
        return Standing(False, f"training converged at {max(converged):.3g}, so 2/L = {edge:.3g} is too low")
    if measured and not (estimate.interval[0] <= measured.interval[1] and measured.interval[0] <= estimate.interval[1]):
        smallest, largest = measured.interval
        reach = f"within {2 / largest:.3g} to {2 / smallest:.3g}" if smallest > 0 else f"above {2 / largest:.3g}"
        words = f"its 2/L = {edge:.3g} is not {reach}, where short trainings stop converging"
        return Standing(False, words)
    return Standing(estimate.identified, "identified" if estimate.identified else "the data do not identify it")
