"""List every name that an experiment file can use, and how long the shipped experiments take on this machine."""

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from excite import data, models
from excite.attacks import ATTACKS
from excite.data.augment import AUGMENTATIONS
from excite.lipschitz import ESTIMATORS
from excite.objectives import OBJECTIVES
from excite.quantities import duration
from excite.runs.arms import ARMS
from excite.runs.experiment import Experiment, catalogue, load
from excite.schedules import SCHEDULES
from excite.sweeps.costs import Price, costs


@dataclass(frozen=True)
class Listing:
    names: dict[str, list[str]]
    experiments: dict[str, Experiment]
    costs: dict[str, Price]
    machine: str

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """One line per experiment; if that is wider than `width`, its summary goes on the lines below."""
        rows = [("", "one run", "its sweep", "")]
        for name, experiment in self.experiments.items():
            cost = self.costs[name]
            sweep = f"{cost.sweep_runs} runs ≈ {duration(cost.sweep_seconds)}" if cost.sweep_runs else ""
            rows.append((name, str(cost), sweep, experiment.summary))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        table = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        ]
        names = [f"{kind}: {', '.join(known)}" for kind, known in self.names.items()]
        if width is not None and max(map(len, table)) > width:
            wrapped = partial(textwrap.wrap, break_on_hyphens=False)
            heads = [line[: sum(widths) + 4].rstrip() for line in table]
            table = [
                "\n".join([head, *wrapped(row[3], width, initial_indent="    ", subsequent_indent="    ")])
                for head, row in zip(heads, rows, strict=True)
            ]
            names = ["\n".join(wrapped(line, width, subsequent_indent="  ")) for line in names]
        heading = f"experiments, and how long they take on this machine ({self.machine}):"
        return "\n".join([heading, *table, "", *names])

    def to_json(self) -> dict[str, Any]:
        experiments = {
            name: {"summary": experiment.summary, **asdict(self.costs[name])}
            for name, experiment in self.experiments.items()
        }
        return {"machine": self.machine, "experiments": experiments, **self.names}


def list_everything(device: torch.device, *, figures: Iterable[str] = ()) -> Listing:
    """Measure the speed of `device` and list everything; `figures` are names that this station does not know."""
    experiments = {name: load(name) for name in sorted(catalogue())}
    names = {
        "data": list(data.names()),
        "augmentations": list(AUGMENTATIONS),
        "models": list(models.MODELS),
        "objectives": list(OBJECTIVES),
        "schedules": list(SCHEDULES),
        "attacks": list(ATTACKS),
        "estimators": list(ESTIMATORS),
        "arms": list(ARMS),
        "figures": list(figures),
    }
    machine = f"cpu × {torch.get_num_threads()}" if device.type == "cpu" else str(device)
    return Listing(names, experiments, costs(experiments, device), machine)
