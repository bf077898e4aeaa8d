"""Judge the primary comparisons of docs/lab/evidence-design.md by its rules, from the tables in results/.

python docs/lab/evidence/primary.py

Prints a Markdown table. Comparisons without all their seeds count in the adjustment by Holm with a p-value of 1.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from excite.evaluation.comparison import holm

RESULTS = Path(__file__).parents[3] / "results"
NO_DIFFERENCE = 2.0  # points
A, C, D = "margin PGD-20 ε=1/255", "margin PGD-40 ε=0.1", "AutoAttack ε=8/255"
PLANNED = [  # (study, folder, the attack that decides, arms)
    ("A", "table-1-length-certified", A, ("poe", "largest")),
    ("B", "table-1-length-resnet20-certified", A, ("poe", "largest", "poe@stated", "largest@stated")),
    *(
        (f"C, batch {batch}, {activation}", f"figure-2-certified-{batch}-{activation}", C, ("half", "poe", "largest"))
        for batch in (64, 2000)
        for activation in ("relu", "tanh")
    ),
    *((f"D, {kind}", f"table-2-overfit-{kind}-certified", D, ("poe", "largest")) for kind in ("pgd-at", "trades")),
    ("R", "table-2-rst-length-certified", D, ("poe", "largest")),
]


@dataclass(frozen=True)
class Comparison:
    """One arm of one study against its baseline; nothing is known before it is trained."""

    study: str
    arm: str
    robust: dict[str, str] | None = None  # the rows of table.csv
    clean: dict[str, str] | None = None
    control: float | None = None  # gain of the η/B control

    @property
    def n_seeds(self) -> int:
        return int(self.robust["difference_seeds"]) if self.robust else 0

    @property
    def complete(self) -> bool:
        return self.n_seeds >= (5 if self.study.startswith("C") else 3)

    @property
    def p_value(self) -> float:
        return float(self.robust["p_value"]) if self.robust and self.complete else 1.0

    def judged(self, adjusted: float) -> str:
        if not self.robust or not self.clean:
            return "not trained"
        if not self.complete:
            return "unfinished"
        low, high = float(self.robust["difference_low"]), float(self.robust["difference_high"])
        if low <= 0 <= high:
            verdict = "no difference" if max(-low, high) <= NO_DIFFERENCE else "open"
        else:
            word = "helps" if low > 0 else "hurts"
            verdict = word if adjusted < 0.05 and self.robust["L_identified"] != "false" else f"seems to {word[:-1]}"
            if low > 0 and self.control is not None and self.control >= float(self.robust["difference"]):
                verdict += ", but so does η/B"
        traded = low > 0 and float(self.clean["difference_high"]) < 0
        return verdict + (", at a loss of clean accuracy" if traded else "")


def comparisons() -> list[Comparison]:
    found = []
    for study, folder, attack, arms in PLANNED:
        path = RESULTS / folder / "table.csv"
        rows = list(csv.DictReader(path.open(encoding="utf-8", newline=""))) if path.exists() else []
        by_arm = {(row["arm"], row["images"]): row for row in rows if row["difference"]}
        gains = [
            float(row["difference"]) for (arm, on), row in by_arm.items() if arm.startswith("batch") and on == attack
        ]
        for arm in arms:
            robust, clean = by_arm.get((arm, attack)), by_arm.get((arm, "clean"))
            found.append(Comparison(study, arm, robust, clean, max(gains, default=None)))
    return found


def _points(row: dict[str, str] | None) -> str:
    if not row:
        return "–"
    return (
        f"{float(row['difference']):+.1f} ({float(row['difference_low']):+.1f} to {float(row['difference_high']):+.1f})"
    )


def table() -> str:
    planned = comparisons()
    lines = [
        "| study | arm | rate | seeds | Δ under the attack | Δ clean | p | p (Holm) | control | verdict |",
        "|" + "---|" * 10,
    ]
    for each, adjusted in zip(planned, holm([each.p_value for each in planned]), strict=True):
        row = each.robust or {}
        cells = [
            *(
                each.study,
                f"`{each.arm}`",
                f"{float(row['rate']):.3g}" if row else "–",
                f"{each.n_seeds}",
            ),
            *(_points(each.robust), _points(each.clean)),
            *(f"{p:.2g}" if each.complete else "–" for p in (each.p_value, adjusted)),
            "–" if each.control is None else f"{each.control:+.1f}",
            each.judged(adjusted),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
