"""Every answer to "how large is L?" side by side."""

import itertools
from collections.abc import Iterator, Mapping

from excite.lipschitz import LipschitzEstimate
from excite.registry import named_options
from excite.report.tables.formats import prose, text_table
from excite.report.trainings import Standing, standing, standing_in
from excite.runs.folder import RunFolder

COLUMNS = ["method", "L", "interval", "1/L", "2/L", "p", "to be trusted"]


@named_options
def estimates_table(estimates: Mapping[str, LipschitzEstimate | str], run: RunFolder | None = None) -> str:
    """A row per method, then what each rests on; a method without an answer says why.

    A method whose 2/L the trainings of `run` contradict is not to be trusted.
    """
    answers = {name: answer for name, answer in estimates.items() if isinstance(answer, LipschitzEstimate)}
    standings = {name: standing_in(run, one) if run else standing(one, ()) for name, one in answers.items()}
    notes = [f"{name}: {estimates[name] if name not in answers else answers[name].basis}." for name in estimates]
    notes += _disagreement({name: one for name, one in answers.items() if standings[name].trusted})
    rows = [_row(name, estimate, standings[name]) for name, estimate in answers.items()]
    return "\n".join([text_table(COLUMNS, rows), "", *(prose(note.replace("..", ".")) for note in notes)])


def _disagreement(trusted: Mapping[str, LipschitzEstimate]) -> Iterator[str]:
    """Each may be sure of its own number, and yet no two of them right."""
    apart = [pair for pair in itertools.combinations(trusted, 2) if not _agree(*(trusted[name] for name in pair))]
    if apart:
        names = dict.fromkeys(itertools.chain.from_iterable(apart))
        tried = any(one.method == "edge" for one in trusted.values())
        believe = "the one to believe is edge, which tries rates; " if tried else ""
        yield (
            f"{', '.join(names)} do not agree, so that not all of them are right; {believe}what a trace tells follows "
            "the rate that the baseline was trained at."
        )


def _agree(one: LipschitzEstimate, other: LipschitzEstimate) -> bool:
    """Whether one of the numbers lies within what the other allows."""
    return any(a.interval[0] <= b.constant <= a.interval[1] for a, b in ((one, other), (other, one)))


def _row(name: str, estimate: LipschitzEstimate, standing: Standing) -> list[str]:
    low, high = estimate.interval
    return [
        name,
        f"{estimate.constant:.4g}",
        f"{low:.3g} to {high:.3g}",
        f"{estimate.learning_rate():.3g}",
        f"{estimate.learning_rate(2):.3g}",
        "–" if estimate.p_value is None else f"{estimate.p_value:.2g}",
        str(standing),
    ]
