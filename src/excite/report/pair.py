"""A table of two models on the same images: both accuracies and the paired difference with its interval."""

from typing import Any

from excite.evaluation import Evaluation, compare
from excite.report.formats import points, text_table

TITLES = ["images", "A in % (95%)", "B in % (95%)", "B − A in points (95%)", "McNemar's p"]


def compared(models: dict[str, Evaluation]) -> tuple[dict[str, Any], str]:
    """The comparison of two evaluations under the same attacks, as JSON and as text."""
    first, second = models.values()
    rows, differences = [], []
    for on, accuracy in first.accuracies.items():
        comparison = compare(first, second, on)
        difference, interval, p_value = comparison.difference, comparison.interval, comparison.p_value
        paired = f"{points(difference)} ({' to '.join(map(points, interval))})"
        rows.append([on, str(accuracy), str(second.accuracy(on)), paired, f"{p_value:.2g}"])
        differences.append({"on": on, "difference": difference, "interval": interval, "p_value": p_value})
    evaluations = {name: evaluation.to_json() for name, evaluation in models.items()}
    names = [f"{letter} = {name}" for letter, name in zip("AB", models, strict=True)]
    flags = [f"Do not trust {name} yet: {flag}" for name, each in models.items() for flag in each.flags]
    text = "\n".join([*names, "", text_table(TITLES, rows), *flags])
    return {"evaluations": evaluations, "differences": differences}, text
