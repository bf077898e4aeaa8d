"""Run functions in worker processes or on a Ray cluster, through one interface: `submit` and `wait`."""

from excite.execution.engine import UNSHARED, EngineName, Executor, Shards, Shared, as_completed, executor

__all__ = ["UNSHARED", "EngineName", "Executor", "Shards", "Shared", "as_completed", "executor"]
