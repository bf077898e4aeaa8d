"""What the theorem says of one training, between its recorded epochs and with θ* the last: as stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Certified:
    """Both assumptions and Definition 1 along an arm's path; a step goes from one epoch to the next."""

    steps: int
    certified: int  # steps with an exact persistently excited ΦΦᵀ
    acute: int  # steps where Assumption 2 holds
    slopes: int  # recorded ones, for Assumption 1
    largest_slope: float | None  # which Assumption 1 wants at most L
    slowest: float | None  # μ₁ over windows of one step, if any step is certified
    fastest: float | None  # μ₂
    mean_rate: float | None  # at which errors shrink, per certified step
    conclusion: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Certified":
        return cls(**value)
