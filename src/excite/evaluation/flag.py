"""A reason to distrust an evaluation."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Flag:
    """A reason to distrust the figures: its name, and what was seen."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"
