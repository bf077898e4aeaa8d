"""A finished run, what its files say, and how many faults are tried: a few in `make test`."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from excite import data
from excite.data import Dataset, PseudoLabels, load_extra, load_unlabelled
from excite.data.decode import decode_mnist
from excite.data.sources import Published
from excite.errors import ExciteError
from excite.evaluation import Evaluation, evaluate
from excite.lipschitz.protocol import LipschitzEstimate
from excite.runs.assemble import Parts, assemble
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.runs.records import GridSearch

EXPERIMENT: dict[str, Any] = {
    "name": "faults",
    "data": {"name": "mnist-sample", "train_examples": 64, "test_examples": 20},
    "model": {"name": "lenet5"},
    "training": {"epochs": 2, "batch_size": 32, "schedule": {"kind": "step", "rate": 0.05, "milestones": [1]}},
    "lipschitz": {"method": "stated", "constant": 16.0},
    "attacks": {"PGD-2": {"kind": "pgd", "eps": 0.1, "step": 0.05, "steps": 2}},
    "arms": ["baseline", "poe"],
}


EVERY_FILE: dict[str, Any] = EXPERIMENT | {  # every kind that a run has
    "training": EXPERIMENT["training"] | {"epochs": 3},
    "record": {"best_every": 2, "held_out_examples": 10},
    "arms": ["baseline", "poe", "grid:2"],
}


HIDDEN = "mnist-sample-1k+4k"
CACHED = Published(
    name="cached",
    about="a few digits",
    num_classes=10,
    input_shape=(1, 28, 28),
    train_images=30,
    test_images=10,
    url="",
    files={},
    decode=decode_mnist,
)


class Quiet:
    """A console that says nothing."""

    def say(self, text: str) -> None: ...

    def task(self, title: str) -> Any:
        return contextlib.nullcontext(lambda _done, _total: None)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the journal of an attack, pseudo-labels and a data set's cache beside what its stages leave."""
    folder = tmp_path_factory.mktemp("faults") / "run"
    run = Run(folder, from_values(EVERY_FILE), console=Quiet(), device="cpu")
    run.all()
    judged(run.parts, run.files)
    images = load_unlabelled(HIDDEN)
    three = torch.arange(3)
    labels = PseudoLabels(three, three, three / 3, HIDDEN, images.fingerprint(), {"arm": "baseline"})
    labels.save(run.files.pseudo_labels_file)
    digits = data.load("mnist-sample")
    few = Dataset(CACHED.name, digits.train.subset(30), digits.test.subset(10), 10)
    CACHED.write(CACHED.file(folder), few)
    return folder


def judged(parts: Parts, run: RunFolder) -> Evaluation:
    """The baseline's evaluation as far as its journal tells it, which is to the end once it was there."""
    baseline = run.arm("baseline")
    model = baseline.load_into(parts.new_model()).eval()
    return evaluate(model, parts.test.floats(), parts.test.labels, parts.attacks, journal=baseline.journal_file)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def told(finished: Path) -> Callable[[Path], str]:
    """All that the files of a run say to those who rely on them, as one text."""
    parts = assemble(RunFolder(finished).experiment, device="cpu")
    model = parts.new_model()

    def tell(path: Path) -> str:
        folder = RunFolder(path)
        says: list[Any] = [folder.to_json(), folder.illustration and folder.illustration.to_json()]
        says.append(judged(parts, folder).to_json()["attacks"])
        says.append(load_extra(folder.pseudo_labels_file).labels.tolist())
        says.append(CACHED.read(CACHED.file(path)).fingerprint())
        for name, stored in folder.estimates.items():
            found: LipschitzEstimate | None = stored.estimate
            says.append([name, found and found.to_json(), stored.problem])
        for arm in folder.arms:
            trace = arm.trace()
            says.append(
                [arm.certified and arm.certified.to_json(), arm.arm.rates and GridSearch.load(arm.search_file).winner]
            )
            says.append([arm.name, str(trace), None if trace is None else trace.squared_gradient_distances.tolist()])
            for trained in (arm, arm.of("best")):
                weights = trained.load_into(model).state_dict()
                says.append({key: float(value.double().sum()) for key, value in weights.items()})
        return json.dumps(says, sort_keys=True)

    return tell


def outcome(tell: Callable[[Path], str], path: Path) -> str | None:
    """What is told, or None where an error of ours refuses it; any other error is a fault."""
    try:
        return tell(path)
    except ExciteError:
        return None
