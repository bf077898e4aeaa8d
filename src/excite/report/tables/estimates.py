"""Every answer to "how large is L?" side by side."""

from collections.abc import Mapping

from excite.lipschitz import LipschitzEstimate
from excite.registry import named_options
from excite.report.tables.formats import prose, text_table
from excite.report.trainings import standing, standing_in
from excite.runs.folder import RunFolder

COLUMNS = ["method", "L", "interval", "1/L", "2/L", "p", "to be trusted"]


@named_options
def estimates_table(estimates: Mapping[str, LipschitzEstimate | str], run: RunFolder | None = None) -> str:
    """A row per method, then what each rests on; a method without an answer says why.

    A method whose 2/L the trainings of `run` contradict is not to be trusted.
    """
    answers = {name: answer for name, answer in estimates.items() if isinstance(answer, LipschitzEstimate)}
    notes = [f"{name}: {estimates[name] if name not in answers else answers[name].basis}." for name in estimates]
    rows = [_row(name, estimate, run) for name, estimate in answers.items()]
    return "\n".join([text_table(COLUMNS, rows), "", *(prose(note.replace("..", ".")) for note in notes)])


def _row(name: str, estimate: LipschitzEstimate, run: RunFolder | None) -> list[str]:
    low, high = estimate.interval
    return [
        name,
        f"{estimate.constant:.4g}",
        f"{low:.3g} to {high:.3g}",
        f"{estimate.learning_rate():.3g}",
        f"{estimate.learning_rate(2):.3g}",
        "–" if estimate.p_value is None else f"{estimate.p_value:.2g}",
        str(standing_in(run, estimate) if run else standing(estimate, ())),
    ]
