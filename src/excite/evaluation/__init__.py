"""Measure clean and robust accuracy, with intervals, per-example outcomes and trust checks; compare two models."""

from typing import TYPE_CHECKING

from excite.evaluation.comparison import Comparison, compare
from excite.evaluation.result import Accuracy, AttackResult, Cost, Curve, Evaluation, Flag, Stage
from excite.execution import Shards
from excite.lazy import lazily

if TYPE_CHECKING:
    from excite.evaluation.robustness import evaluate

__all__ = [
    "Accuracy",
    "AttackResult",
    "Comparison",
    "Cost",
    "Curve",
    "Evaluation",
    "Flag",
    "Shards",
    "Stage",
    "compare",
    "evaluate",
]

__getattr__ = lazily(__name__, {"evaluate": "robustness"})
