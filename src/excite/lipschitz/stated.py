"""L as given, such as a published value: it is not measured, but gives the rates 1/L and 2/L."""

import math
from dataclasses import dataclass
from typing import ClassVar

from excite.errors import InputError
from excite.lipschitz.protocol import Estimator, LipschitzEstimate, Needs


@dataclass(frozen=True)
class Stated(Estimator[None]):
    """`constant` is L; `source` is where it comes from.

    >>> print(Stated(4.0, "the paper's Table 1")(None))
    L = 4, stated by the paper's Table 1. 1/L = 0.25, 2/L = 0.5.
    """

    title: ClassVar[str] = "stated (given, not measured)"
    about: ClassVar[str] = "An L that is given, such as a published one."
    needs: ClassVar[Needs] = "nothing"

    constant: float
    source: str = "the experiment"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.constant) and self.constant > 0):
            raise InputError(f"L must be positive and finite, not {self.constant}. To start at a rate η, state 1/η.")

    def __call__(self, evidence: object = None) -> LipschitzEstimate:  # noqa: ARG002
        constant = float(self.constant)
        return LipschitzEstimate(constant, (constant, constant), "stated", identified=False, basis=self.source)
