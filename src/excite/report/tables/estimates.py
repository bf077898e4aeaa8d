"""Every answer to "how large is L?" side by side."""

from collections.abc import Mapping, Sequence

from excite.lipschitz import LipschitzEstimate
from excite.registry import named_options
from excite.report.tables.formats import prose, text_table
from excite.report.trainings import standing
from excite.runs.folder import ArmFolder

COLUMNS = ["method", "L", "interval", "1/L", "2/L", "p", "to be trusted"]


@named_options
def estimates_table(estimates: Mapping[str, LipschitzEstimate | str], arms: Sequence[ArmFolder] = ()) -> str:
    """A row per method, then what each rests on; a method without an answer says why.

    `arms` are the run's trainings: a method whose 2/L they contradict is not to be trusted.
    """
    answers = {name: answer for name, answer in estimates.items() if isinstance(answer, LipschitzEstimate)}
    notes = [f"{name}: {estimates[name] if name not in answers else answers[name].basis}." for name in estimates]
    rows = [_row(name, estimate, arms) for name, estimate in answers.items()]
    return "\n".join([text_table(COLUMNS, rows), "", *(prose(note.replace("..", ".")) for note in notes)])


def _row(name: str, estimate: LipschitzEstimate, arms: Sequence[ArmFolder]) -> list[str]:
    low, high = estimate.interval
    return [
        name,
        f"{estimate.constant:.4g}",
        f"{low:.3g} to {high:.3g}",
        f"{estimate.learning_rate():.3g}",
        f"{estimate.learning_rate(2):.3g}",
        "–" if estimate.p_value is None else f"{estimate.p_value:.2g}",
        str(standing(estimate, arms)),
    ]
