"""Files of a run that somebody deletes: the stage is done again and the rest stays, or an error names the cure."""

import ast
import contextlib
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import excite
from excite.cli import cli
from excite.errors import CorruptFileError, InterruptedRunError
from excite.files import read_json, write_json
from excite.runs import catalogue
from excite.runs.experiment import Experiment, from_values
from excite.runs.folder import ESTIMATE, RunFolder
from excite.runs.procedure import Run
from excite.sweeps import Job, earlier_outcome
from tests.contents import contents
from tests.faults.conftest import EXPERIMENT, Quiet

Call = Callable[..., tuple[str, str]]
TINY: dict[str, Any] = EXPERIMENT | {
    "data": {"name": "mnist-sample", "train_examples": 32, "test_examples": 10},
    "training": EXPERIMENT["training"] | {"epochs": 3, "batch_size": 16},
    "attacks": {"PGD-1": {"kind": "pgd", "eps": 0.1, "step": 0.05, "steps": 1}},
    "record": {"best_every": 3, "held_out_examples": 10, "average": 0.5, "slopes_per_epoch": 1, "test_examples": 10},
    "arms": ["baseline", "poe", "grid:2"],
}
WEIGHTS = ["checkpoint.json", "evaluation.json", "weights-0003-000000.safetensors"]
EVALUATIONS = ["evaluation.json", "best/evaluation.json", "averaged/evaluation.json"]
OF_AN_ARM = [
    *("certificate.json", "metrics.jsonl", "outcome.json", "trace.safetensors"),
    *(f"{weights}{name}" for weights in ("", "best/", "averaged/") for name in WEIGHTS),
]
OF_A_RUN = ["experiment.json", "estimate.json", "illustration.json"]
ARMS = ("baseline", "poe", "grid-2")
EVERY = OF_A_RUN + [f"{arm}/{name}" for arm in ARMS for name in OF_AN_ARM] + ["grid-2/search.json"]
MADE_AGAIN = [*OF_A_RUN, "grid-2/search.json", "baseline/certificate.json", *(f"poe/{name}" for name in EVALUATIONS)]
BASELINE = from_values(TINY | {"arms": ["baseline"]})


def do(folder: Path, experiment: Experiment | None = None, console: Any = None) -> None:
    Run(folder, experiment or from_values(TINY), console=console or Quiet(), device="cpu").all()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lost") / "run"
    do(folder)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_every_file_is_tried(whole: Path) -> None:
    assert set(contents(whole)) == set(EVERY)


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_a_lost_file_is_made_again(copied: Path, whole: Path, name: str) -> None:
    """Everything is as before, to the byte in all other files."""
    (copied / name).unlink()
    do(copied)
    assert contents(copied) == contents(whole)
    for other in EVERY:
        assert other == name or (copied / other).read_bytes() == (whole / other).read_bytes(), other


def test_arms_whose_weights_were_removed_to_save_space_are_not_trained_again(copied: Path) -> None:
    for name in EVERY:
        if name.endswith((".safetensors", "checkpoint.json")):
            (copied / name).unlink()
    before = contents(copied)
    do(copied)
    assert contents(copied) == before
    assert earlier_outcome(Job(copied, "poe"))


@pytest.mark.parametrize("name", ["outcome.json", "evaluation.json", "best/evaluation.json"])
def test_a_sweep_knows_what_is_lost(copied: Path, name: str) -> None:
    assert earlier_outcome(Job(copied, "poe"))
    (copied / "poe" / name).unlink()
    assert earlier_outcome(Job(copied, "poe")) is None


def test_a_lost_outcome_is_made_again_as_the_error_says(copied: Path, whole: Path) -> None:
    (copied / "poe" / "outcome.json").unlink()
    with pytest.raises(CorruptFileError, match=r"delete .*/poe/moments and the checkpoint"):
        do(copied)
    (copied / "poe" / "checkpoint.json").unlink()  # there are no moments left
    do(copied)
    assert contents(copied) == contents(whole)


def test_an_arm_without_its_weights_is_trained_again_as_the_error_says(copied: Path, whole: Path, call: Call) -> None:
    (copied / "poe" / WEIGHTS[-1]).unlink()
    command = ("attack", copied, "--arm", "poe", "--with", "pgd", "--eps", "0.1", "--steps", "1", "--device", "cpu")
    assert f"delete {copied / 'poe'} to train again" in call(*command, code=5)[1]
    shutil.rmtree(copied / "poe")
    do(copied)
    assert contents(copied) == contents(whole)
    call(*command)


def test_another_l_than_the_one_trained_at_is_refused_until_the_arm_is_deleted(copied: Path, whole: Path) -> None:
    stored = read_json(copied / ESTIMATE)
    write_json(copied / ESTIMATE, stored | {"estimate": stored["estimate"] | {"constant": 8.0}})
    with pytest.raises(CorruptFileError, match="delete") as refused:
        do(copied)
    assert str(copied / "poe") in str(refused.value)
    shutil.rmtree(copied / "poe")
    do(copied)
    assert RunFolder(copied).arm("poe").rate == 1 / 8
    assert contents(copied)["baseline/metrics.jsonl"] == contents(whole)["baseline/metrics.jsonl"]


class Stopping(Quiet):
    """Stops the training of an arm in its last epoch, as a person does."""

    @contextlib.contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, _: os.kill(os.getpid(), signal.SIGINT) if done == 5 and "training" in title else None


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(InterruptedRunError):
        do(folder, BASELINE, Stopping())
    return folder


@pytest.mark.parametrize(
    ("lost", "is_refused"),
    [
        ("checkpoint.json", False),
        ("moments", True),
        ("weights-*", True),
        ("metrics.jsonl", True),
        ("moments/*1.npy", True),
    ],
)
def test_what_a_stopped_training_has_lost_is_made_again_or_an_error_names_the_folder_to_delete(
    stopped: Path, whole: Path, tmp_path: Path, lost: str, is_refused: bool
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    for path in (run / "baseline").glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if is_refused:
        with pytest.raises(CorruptFileError, match="delete") as refused:
            do(run, BASELINE)
        assert str(run / "baseline") in str(refused.value)
        shutil.rmtree(run / "baseline")
    do(run, BASELINE)
    for name in ("outcome.json", "trace.safetensors"):
        assert contents(run)[f"baseline/{name}"] == contents(whole)[f"baseline/{name}"]


@pytest.mark.parametrize("name", ["poe", "poe/best", "baseline/outcome.json"])
def test_a_link_inside_a_run_is_refused(copied: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (copied / name).rename(elsewhere)
    (copied / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    with pytest.raises(CorruptFileError, match="link"):
        do(copied)
    assert contents(elsewhere) == before


def test_a_linked_arm_is_not_reported(copied: Path, tmp_path: Path) -> None:
    (copied / "poe").rename(tmp_path / "elsewhere")
    (copied / "poe").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptFileError, match="link"):
        _ = RunFolder(copied).arms


def cures(text: str) -> list[list[str]]:
    """The commands in a message, without `excite`."""
    return [shlex.split(command) for command in re.findall(r"`excite ([^`]+)`", " ".join(text.split()))]


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        (["report", "RUN"], "poe/metrics.jsonl"),
        (["certify", "RUN", "--arm", "poe"], "poe/trace.safetensors"),
        (["certify", "RUN", "--arm", "poe"], "poe"),
        (["attack", "RUN", "--arm", "poe", "--with", "pgd", "--eps", "0.1", "--steps", "1"], "poe/checkpoint.json"),
        (["estimate", "RUN"], "estimate.json"),
        (["certify", "RUN"], "estimate.json"),
        (["report", "RUN", "--format", "csv"], "experiment.json"),
    ],
)
def test_the_command_in_an_error_is_its_cure(
    whole: Path, tmp_path: Path, call: Call, command: list[str], lost: str
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "a run"))
    (tmp_path / "EXPERIMENT.toml").write_text(tomli_w.dumps(TINY), encoding="utf-8")
    command = [str(run) if word == "RUN" else word for word in command]
    code = 5 if lost.endswith(".jsonl") else 2
    shutil.rmtree(run / lost) if (run / lost).is_dir() else (run / lost).unlink()
    problem = call(*command, code=code)[1]
    (cure,) = cures(problem)
    if "delete" in problem:
        shutil.rmtree(run / "poe")
    call(*(word.replace("EXPERIMENT", "EXPERIMENT.toml") for word in cure), "--device", "cpu")
    call(*command)
    assert (run / lost).exists()


@pytest.mark.slow
def test_the_command_beside_a_missing_estimate_makes_it(copied: Path, call: Call) -> None:
    first, *others = cures(call("estimate", copied, "--compare")[0])
    assert all(other == first for other in others)
    call(*first)
    assert not cures(call("estimate", copied, "--compare")[0])


def test_the_cure_for_an_edited_file_is_to_delete_it(copied: Path, call: Call) -> None:
    edited = copied / "poe" / "evaluation.json"
    edited.write_text(edited.read_text(encoding="utf-8").replace('"seconds": ', '"seconds": 1'), encoding="utf-8")
    assert "delete it" in call("report", copied, "--format", "csv", code=5)[1]
    edited.unlink()
    do(copied)
    call("report", copied, "--format", "csv")


def commands_in_messages() -> set[str]:
    """Every command with arguments that a string of excite contains; `X` stands for what is filled in."""
    commands: set[str] = set()
    for path in Path(excite.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            values = [part.value if isinstance(part, ast.Constant) else "X" for part in parts]
            commands |= {*re.findall(r"`excite ([^`]+ [^`]+)`", "".join(map(str, values)))}
    return commands - {"estimate X X"}  # its options are filled in; carried out above


def test_every_command_in_a_message_can_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("RUN", "X"):
        Path(folder).mkdir()
    commands = commands_in_messages()
    assert {"run theorem-1", "train X --arm X"} <= commands
    for command in commands:
        words = shlex.split(command)
        parsed = cli.commands[words[0]].make_context(words[0], words[1:])
        name = parsed.params.get("experiment", "quickstart")
        assert name in {*catalogue(), "EXPERIMENT", "FILE.toml", "RUN", "X"}, command
