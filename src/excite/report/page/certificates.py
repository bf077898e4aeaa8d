"""Does the theorem hold along each arm's path? Read from what the runs have stored."""

from collections.abc import Sequence
from dataclasses import dataclass

from excite.report import labels
from excite.runs.certified import Certified
from excite.runs.folder import RunFolder


@dataclass(frozen=True)
class CertificateRow:
    """One arm of one run: its certificate, and the L that Assumption 1 is held against."""

    run: str
    arm: str
    found: Certified
    constant: float | None  # L
    source: str

    @property
    def smooth(self) -> bool | None:
        """Whether no recorded slope refutes Assumption 1; None where there is no L or no slope."""
        if self.constant is None or self.found.largest_slope is None:
            return None
        return self.found.largest_slope <= self.constant


def certificates(runs: Sequence[tuple[RunFolder, str]]) -> list[CertificateRow]:
    """A row per arm that has one, each with what its run is called."""
    rows = []
    for run, label in runs:
        for arm in run.arms:
            if arm.certified:
                estimate = run.estimate_of(arm.name)
                source = f"{label}/" if label else ""
                rows.append(
                    CertificateRow(
                        run=label,
                        arm=labels.arm_title([arm]),
                        found=arm.certified,
                        constant=estimate.constant if estimate else None,
                        source=f"{source}{arm.name}/{arm.certificate_file.name}",
                    )
                )
    return rows
