"""Where a sweep's jobs are done: in processes of this machine, or by Ray on many."""

from collections.abc import Callable, Generator, Sequence

from excite.sweeps.engines.on_processes import run_locally
from excite.sweeps.engines.on_ray import run_on_ray
from excite.sweeps.jobs import Job, JobEnd

Engine = Callable[[Sequence[Job]], Generator[tuple[Job, JobEnd], None, None]]

__all__ = ["Engine", "run_locally", "run_on_ray"]
