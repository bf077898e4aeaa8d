"""Clean and robust accuracy with intervals, every example's outcome, and reasons to distrust them."""

from excite.evaluation.accuracy import Accuracy
from excite.evaluation.comparison import Comparison, compare
from excite.evaluation.curve import Curve
from excite.evaluation.judge import evaluate
from excite.evaluation.result import AttackResult, Cost, Evaluation, Stage
from excite.evaluation.shards import Shards
from excite.evaluation.trust import Flag

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
