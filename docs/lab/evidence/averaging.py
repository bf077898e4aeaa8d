"""What an exponential moving average of the weights gains on the last weights, in the trainings of the evidence.

python docs/lab/evidence/averaging.py

Prints a Markdown table: the gain of each arm's averaged weights on its own last weights, and on the baseline's.
"""

from pathlib import Path

from excite.evaluation.comparison import PairedDifference, paired_difference
from excite.runs.folder import RunFolder, collect

RESULTS = Path(__file__).parents[3] / "results"
STUDIES = {
    "A": "table-1-length-certified",
    "B": "table-1-length-resnet20-certified",
    **{
        f"C, batch {batch}, {activation}": f"figure-2-certified-{batch}-{activation}"
        for batch in (64, 2000)
        for activation in ("relu", "tanh")
    },
}


def gain(runs: list[RunFolder], base: str, arm: str) -> PairedDifference | None:
    """The accuracy of the averaged weights of `arm` minus that of the last weights of `base`."""
    attack, pairs = runs[0].experiment.deciding, []
    for run in runs:
        last, averaged = run.arm(base).evaluation, run.arm(arm).of("averaged").evaluation
        if last and averaged:
            pairs.append((last, averaged))
    return paired_difference(pairs, attack) if pairs else None


def text(difference: PairedDifference | None) -> str:
    if difference is None:
        return "–"
    low, high = difference.interval
    return f"{100 * difference.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    print("| study | arm | averaged minus last | averaged minus the baseline's last |\n|---|---|---|---|")
    for study, folder in STUDIES.items():
        runs = collect([RESULTS / folder]) if (RESULTS / folder).exists() else []
        for arm in runs[0].arms if runs else []:
            on_itself, on_baseline = (text(gain(runs, base, arm.name)) for base in (arm.name, "baseline"))
            print(f"| {study} | {arm.name} | {on_itself} | {on_baseline} |")
