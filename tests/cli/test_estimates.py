"""What L is and whether a training was excited, asked of a run that lacks the answer: nothing is trained unasked."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from excite.cli import cli


def excite(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False)


@pytest.fixture(scope="module")
def baseline_only(tmp_path_factory: pytest.TempPathFactory, tiny_experiment: str) -> Path:
    folder = tmp_path_factory.mktemp("estimates")
    (folder / "tiny.toml").write_text(tiny_experiment.replace("epochs = 2", "epochs = 3"), encoding="utf-8")
    assert excite("train", folder / "tiny.toml", "--out", folder / "run").exception is None
    return folder / "run"


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.name.endswith(".lock")}


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["estimate", "RUN"], "`excite estimate RUN --train`"),
        (["estimate", "RUN", "--compare"], "`excite estimate RUN --train`"),
        (["certify", "RUN"], "`excite estimate RUN --train`"),
        (["certify", "RUN", "--arm", "poe"], "`excite train RUN --arm poe`"),
    ],
)
def test_names_the_command_that_makes_a_missing_estimate(baseline_only: Path, arguments: list[str], cure: str) -> None:
    before = files(baseline_only)
    answer = excite(*(word.replace("RUN", str(baseline_only)) for word in arguments))
    assert cure.replace("RUN", str(baseline_only)) in str(answer.exception)
    assert files(baseline_only) == before


def test_suggested_commands_work(baseline_only: Path) -> None:
    made = excite("estimate", baseline_only, "--train", "--json")
    assert made.exception is None
    assert json.loads(made.stdout) == json.loads(excite("estimate", baseline_only, "--json").stdout)
    assert "Assumption 2" in excite("certify", baseline_only).stdout
    assert excite("train", baseline_only, "--arm", "poe").exception is None
    assert "Assumption 2" in excite("certify", baseline_only, "--arm", "poe").stdout


def test_refuses_to_change_the_experiment_of_a_run(baseline_only: Path) -> None:
    answer = excite("train", baseline_only, "--set", "training.epochs=3")
    assert "--out" in str(answer.exception)
