"""Compare PGD-AT in bfloat16 with float32, from results/pgd-at-bf16 and results/pgd-at-float32.

python docs/lab/evidence/precision.py

Prints a Markdown table of accuracies with the last weights, and of the paired difference with its 95% interval.
"""

from pathlib import Path
from statistics import fmean

from excite.evaluation import Evaluation
from excite.evaluation.comparison import paired_difference

RESULTS = Path(__file__).parents[3] / "results"


def evaluations(precision: str) -> list[Evaluation]:
    return [
        Evaluation.load(path) for path in sorted(RESULTS.glob(f"pgd-at-{precision}/seed-*/baseline/evaluation.json"))
    ]


def table() -> str:
    pairs = list(zip(evaluations("float32"), evaluations("bf16"), strict=True))
    lines = ["| images | float32 % | bfloat16 % | difference, points |", "|---|---|---|---|"]
    for images in ("clean", *pairs[0][0].robust):
        means = [
            100 * fmean((each.clean if images == "clean" else each.robust[images]).value for each in side)
            for side in zip(*pairs, strict=True)
        ]
        paired = paired_difference(pairs, images)
        low, high = paired.interval
        lines.append(
            f"| {images} | {means[0]:.2f} | {means[1]:.2f} | {100 * paired.difference:+.2f} "
            f"({100 * low:+.2f} to {100 * high:+.2f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
