"""A finished run, what its files say, and how many faults are tried: a few in `make test`."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from excite.errors import ExciteError
from excite.lipschitz.protocol import LipschitzEstimate
from excite.runs.assemble import assemble
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run

EXPERIMENT: dict[str, Any] = {
    "name": "faults",
    "data": {"name": "mnist-sample", "train_examples": 64, "test_examples": 20},
    "model": {"name": "lenet5"},
    "training": {"epochs": 2, "batch_size": 32, "schedule": {"kind": "step", "rate": 0.05, "milestones": [1]}},
    "lipschitz": {"method": "stated", "constant": 16.0},
    "attacks": {"PGD-2": {"kind": "pgd", "eps": 0.1, "step": 0.05, "steps": 2}},
    "arms": ["baseline", "poe"],
}


class Quiet:
    """A console that says nothing."""

    def say(self, text: str) -> None: ...

    def task(self, title: str) -> Any:
        return contextlib.nullcontext(lambda _done, _total: None)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "run"
    Run(folder, from_values(EXPERIMENT), console=Quiet(), device="cpu").all()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def told(finished: Path) -> Callable[[Path], str]:
    """All that the files of a run say to those who rely on them, as one text."""
    model = assemble(RunFolder(finished).experiment, device="cpu").new_model()

    def tell(path: Path) -> str:
        folder = RunFolder(path)
        says: list[Any] = [folder.to_json(), folder.illustration and folder.illustration.to_json()]
        for name, stored in folder.estimates.items():
            found: LipschitzEstimate | None = stored.estimate
            says.append([name, found and found.to_json(), stored.problem])
        for arm in folder.arms:
            trace = arm.trace()
            says.append([arm.name, str(trace), None if trace is None else trace.squared_gradient_distances.tolist()])
            weights = arm.load_into(model).state_dict()
            says.append({key: float(value.double().sum()) for key, value in weights.items()})
        return json.dumps(says, sort_keys=True)

    return tell


def outcome(tell: Callable[[Path], str], path: Path) -> str | None:
    """What is told, or None where an error of ours refuses it; any other error is a fault."""
    try:
        return tell(path)
    except ExciteError:
        return None
