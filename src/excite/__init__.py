"""Learning rates that make neural networks robust: find L, train at 1/L and 2/L, attack, compare."""

from typing import TYPE_CHECKING

from excite.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(["Evaluation", "evaluate"], "evaluation"),
    **dict.fromkeys(["acuteness", "certificate", "choose_batch_size"], "excitation"),
    **dict.fromkeys(["LipschitzEstimate", "OnlineRate", "estimate_lipschitz", "find_edge"], "lipschitz"),
    **dict.fromkeys(["Recorder", "Trace"], "trace"),
    "benchmark": "integrations.robustbench",
    "find_learning_rate": "finder",
    "rescale_scheduler": "rescaling",
    "train": "training",
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


__getattr__ = lazily(__name__, _HOMES, modules=set(__all__) - _HOMES.keys())


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
