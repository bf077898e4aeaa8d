"""Every answer to "how large is L?" side by side."""

from collections.abc import Mapping

from excite.lipschitz import LipschitzEstimate
from excite.report.tables.text import text_table

COLUMNS = ["method", "L", "interval", "1/L", "2/L", "p", "identified"]


def estimates_table(estimates: Mapping[str, LipschitzEstimate | str]) -> str:
    """A row per method, then what each rests on; a method without an answer says why."""
    answers = {name: answer for name, answer in estimates.items() if isinstance(answer, LipschitzEstimate)}
    notes = [f"{name}: {estimates[name] if name not in answers else answers[name].basis}." for name in estimates]
    rows = [_row(name, estimate) for name, estimate in answers.items()]
    return "\n".join([text_table(COLUMNS, rows), "", *(note.replace("..", ".") for note in notes)])


def _row(name: str, estimate: LipschitzEstimate) -> list[str]:
    low, high = estimate.interval
    return [
        name,
        f"{estimate.constant:.4g}",
        f"{low:.3g} to {high:.3g}",
        f"{estimate.learning_rate():.3g}",
        f"{estimate.learning_rate(2):.3g}",
        "–" if estimate.p_value is None else f"{estimate.p_value:.2g}",
        "yes" if estimate.identified else "no",
    ]
