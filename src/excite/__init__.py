"""Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Evaluation": "excite.evaluation",
    "LipschitzEstimate": "excite.lipschitz",
    "OnlineRate": "excite.lipschitz",
    "Recorder": "excite.trace",
    "Trace": "excite.trace",
    "acuteness": "excite.excitation",
    "benchmark": "excite.integrations.robustbench",
    "certificate": "excite.excitation",
    "choose_batch_size": "excite.excitation",
    "estimate_lipschitz": "excite.lipschitz",
    "evaluate": "excite.evaluation",
    "find_edge": "excite.lipschitz",
    "find_learning_rate": "excite.finder",
    "rescale_scheduler": "excite.rescaling",
    "train": "excite.training",
}

__all__ = ["Evaluation", "LipschitzEstimate", "OnlineRate", "Recorder", "Trace", "acuteness", "benchmark"]
__all__ += ["certificate", "choose_batch_size", "estimate_lipschitz", "evaluate", "find_edge", "find_learning_rate"]
__all__ += ["rescale_scheduler", "train"]
# Modules:
__all__ += ["attacks", "data", "errors", "evaluation", "excitation", "integrations", "lipschitz", "models"]
__all__ += ["objectives", "report", "runs", "schedules", "sweeps", "trace", "training"]

if TYPE_CHECKING:
    from excite import (
        attacks,
        data,
        errors,
        evaluation,
        excitation,
        integrations,
        lipschitz,
        models,
        objectives,
        report,
        runs,
        schedules,
        sweeps,
        trace,
        training,
    )
    from excite.evaluation import Evaluation, evaluate
    from excite.excitation import acuteness, certificate, choose_batch_size
    from excite.finder import find_learning_rate
    from excite.integrations.robustbench import benchmark
    from excite.lipschitz import LipschitzEstimate, OnlineRate, estimate_lipschitz, find_edge
    from excite.rescaling import rescale_scheduler
    from excite.trace import Recorder, Trace
    from excite.training import train


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `excite --help` should not wait for torch."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in __all__:
        return importlib.import_module(f"excite.{name}")
    raise AttributeError(f"module 'excite' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
