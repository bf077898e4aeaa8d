"""What else differs between arms besides η¹: what a reader should rule out before crediting 1/L or 2/L."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from excite.report import labels
from excite.runs.folder import RunFolder


@dataclass(frozen=True)
class Confounders:
    """Of one training: the ratios that are known to matter by themselves, and how far it came."""

    run: str
    arm: str
    rate_per_image: float  # η¹/B
    rate_times_decay: float  # η¹·λ
    epochs: int
    final_rate: float | None
    final_loss: float | None

    @classmethod
    def of(cls, run: RunFolder, label: str) -> Iterable["Confounders"]:
        training = run.experiment.training
        for arm in run.arms:
            last = arm.epochs[-1] if arm.epochs else None
            yield cls(
                run=label,
                arm=labels.arm_title([arm]),
                rate_per_image=arm.rate / training.batch_size,
                rate_times_decay=arm.rate * training.weight_decay,
                epochs=len(arm.epochs),
                final_rate=last.rate if last else None,
                final_loss=last.loss if last else None,
            )


def confounders(runs: Sequence[tuple[RunFolder, str]]) -> list[Confounders]:
    """A row per arm of every run, each with what its run is called."""
    return [row for run, label in runs for row in Confounders.of(run, label)]
