"""A few test images, what the first attack adds to them, and what each arm sees before and after: as stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Prediction:
    name: str
    confidence: float
    right: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.confidence:.0%})"


@dataclass(frozen=True)
class Attacked:
    """One image under attack against one arm; pictures are PNG data URIs."""

    arm: str
    perturbation: str
    picture: str
    before: Prediction
    after: Prediction


@dataclass(frozen=True)
class Example:
    number: int  # of the run's test images, from 0
    name: str  # what it truly shows
    picture: str
    attacked: tuple[Attacked, ...]


@dataclass(frozen=True)
class Illustration:
    attack: str
    chosen: str  # how the images were chosen
    largest: float  # the largest change of a pixel, which the perturbation's pictures show as black or white
    examples: tuple[Example, ...]
    arms: tuple[str, ...]  # folders of the checkpoints

    @property
    def magnification(self) -> float:
        return 0.5 / self.largest if self.largest else 1.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Illustration":
        examples = tuple(
            Example(**example | {"attacked": tuple(_attacked(one) for one in example["attacked"])})
            for example in value["examples"]
        )
        return cls(**{**value, "examples": examples, "arms": tuple(value["arms"])})


def _attacked(value: Mapping[str, Any]) -> Attacked:
    return Attacked(**{**value, "before": Prediction(**value["before"]), "after": Prediction(**value["after"])})
