"""Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Evaluation": "excite.evaluation",
    "LipschitzEstimate": "excite.lipschitz",
    "Recorder": "excite.trace",
    "Trace": "excite.trace",
    "acuteness": "excite.excitation",
    "benchmark": "excite.integrations.robustbench",
    "certificate": "excite.excitation",
    "choose_batch_size": "excite.excitation",
    "estimate_lipschitz": "excite.lipschitz",
    "evaluate": "excite.evaluation",
    "find_edge": "excite.lipschitz",
    "rescale_scheduler": "excite.rescaling",
    "train": "excite.training",
}
_STATIONS = (
    "attacks",
    "data",
    "evaluation",
    "excitation",
    "lipschitz",
    "models",
    "objectives",
    "schedules",
    "trace",
    "training",
)

__all__ = [
    "Evaluation",
    "LipschitzEstimate",
    "Recorder",
    "Trace",
    "acuteness",
    "attacks",
    "benchmark",
    "certificate",
    "choose_batch_size",
    "data",
    "estimate_lipschitz",
    "evaluate",
    "find_edge",
    "models",
    "objectives",
    "rescale_scheduler",
    "schedules",
    "train",
]

if TYPE_CHECKING:
    from excite import attacks, data, models, objectives, schedules
    from excite.evaluation import Evaluation, evaluate
    from excite.excitation import acuteness, certificate, choose_batch_size
    from excite.integrations.robustbench import benchmark
    from excite.lipschitz import LipschitzEstimate, estimate_lipschitz, find_edge
    from excite.rescaling import rescale_scheduler
    from excite.trace import Recorder, Trace
    from excite.training import train


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `excite --help` should not wait for torch."""
    if name in _STATIONS:
        return importlib.import_module(f"excite.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'excite' has no attribute {name!r}")
