"""What figures read from run folders: traces; and how they say what is missing."""

from excite.errors import InputError
from excite.runs.folder import RunFolder
from excite.trace import Trace


def trace(run: RunFolder, arm: str = "baseline") -> Trace | None:
    """What the recorder noted of an arm that trained to its end."""
    return run.arm(arm).trace()


def needs(figure: str, what: str, cure: str) -> InputError:
    """The error for runs that lack what a figure shows.

    >>> print(needs("figure-4", "runs at two batch sizes or more", "Sweep over training.batch_size."))
    figure-4 needs runs at two batch sizes or more. Sweep over training.batch_size.
    """
    return InputError(f"{figure} needs {what}. {cure}")
