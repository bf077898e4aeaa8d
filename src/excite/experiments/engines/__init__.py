"""Where a sweep's jobs are done: in processes of this machine, or by Ray on many."""

from collections.abc import Callable, Generator, Sequence

from excite.experiments.engines.local import run_locally
from excite.experiments.engines.on_ray import run_on_ray
from excite.experiments.jobs import Job, Outcome

Engine = Callable[[Sequence[Job]], Generator[tuple[Job, Outcome], None, None]]

__all__ = ["Engine", "run_locally", "run_on_ray"]
