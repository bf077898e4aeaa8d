"""Options that would have no effect are refused."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from excite.cli import cli
from excite.cli.options import resolve_experiment
from excite.runs.experiment import flattened

RUN = "a-run"  # a folder; what would be ignored is refused before anybody looks into it
REFUSED = {
    "sweep --address": ["sweep", "mnist-sample", "--address", "auto"],
    "sweep --workers": ["sweep", "mnist-sample", "--engine", "ray", "--address", "auto", "--workers", "2"],
    "estimate --device": ["estimate", RUN, "--device", "cpu"],
    "attack --arm": ["attack", "--model", "lenet5", "--weights", "w.pt", "--with", "pgd", "--arm", "poe"],
    "attack --eps": ["attack", RUN, "--eps", "0.9"],
    "attack --step": ["attack", RUN, "--step", "0.1"],
    "attack --steps": ["attack", RUN, "--steps", "3"],
    "attack --restarts": ["attack", RUN, "--restarts", "3"],
    "attack --norm": ["attack", RUN, "--norm", "l2"],
    "attack --examples": ["attack", RUN, "--examples", "3"],
    "attack --batch-size": ["attack", RUN, "--batch-size", "500"],
    "attack --precision": ["attack", RUN, "--precision", "bf16"],
    "attack --address": ["attack", RUN, "--address", "auto"],
    "attack --model": ["attack", RUN, "--model", "lenet5"],
    "attack --weights": ["attack", RUN, "--with", "pgd", "--weights", "w.pt"],
    "attack --data": ["attack", RUN, "--with", "pgd", "--data", "mnist"],
    "export --arm": ["export", RUN, "--to", "tensorboard", "--arm", "poe"],
    "export --out": ["export", RUN, "--to", "mlflow", "--out", "here"],
    "report --open": ["report", RUN, "--format", "csv", "--open"],
    "report --out": ["report", RUN, "--format", "csv", "--out", "page.html"],
    "report --json": ["report", RUN, "--format", "csv", "--json"],
}
# A --set of what another option or the sweep decides, and of the table that it is in.
LOST = {
    "run mnist-sample --estimator paper --set lipschitz=edge": "--estimator",
    "run mnist-sample --estimator paper --set lipschitz.method=edge": "--estimator",
    "run mnist-sample --estimator paper --set lipschitz={shared=true}": "--estimator",
    "run --seeds 2 --set seed=7": "--seeds",
    "run --arms baseline --set arms=['poe']": "--arms",
    "run --set sweep.seed=[1,2]": "`excite sweep`",
    "train --set sweep={seed=[1,2]}": "`excite sweep`",
    "sweep mnist-sample --estimator paper --set lipschitz=edge": "--estimator",
    "sweep mnist-sample --seeds 2 --set seed=7": "--seeds",
    "sweep mnist-sample --seeds 2 --set sweep={seed=[7,8]}": "--seeds",
    "sweep mnist-sample --arms baseline --set arms=['poe']": "--arms",
    "sweep figure-2-relu-small --set training.schedule.rate=0.7": "--set 'sweep.training.schedule.rate=[…]'",
    "sweep mnist-sample --set sweep.seed=[1,2] --set seed=7": "--set 'sweep.seed=[…]'",
    "batch-size mnist-sample --try 32 64 --set training.batch_size=5": "--try",
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_would_be_ignored_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / RUN).mkdir()
    answer = CliRunner().invoke(cli, REFUSED[option])
    assert answer.exit_code == 2
    assert option.rsplit(maxsplit=1)[-1] in answer.stderr
    assert answer.stdout == ""
    assert [path.name for path in tmp_path.rglob("*")] == [RUN]


@pytest.mark.parametrize("command", LOST)
def test_a_set_that_something_else_decides_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(cli, command.split())
    key = command.rsplit(maxsplit=1)[-1].partition("=")[0]
    assert answer.exit_code == 2
    assert f"--set {key}" in answer.stderr
    assert LOST[command] in answer.stderr
    assert answer.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (["lipschitz.shared=true"], {"estimator": "stated"}),
        (["estimators.mine={method='stated',constant=3.0}"], {"estimator": "mine"}),
        (["sweep={training.epochs=[1,2]}"], {"seeds": 2, "sweeping": True}),
        (["training.schedule={kind='constant'}"], {"sweeping": True}),
        (["sweep={}", "training.schedule.rate=0.7"], {"sweeping": True}),
        (["training.schedule={kind='constant',rate=0.7}"], {"sweeping": True}),
    ],
)
def test_a_set_beside_what_is_decided_is_used(changes: list[str], options: dict[str, Any]) -> None:
    found = resolve_experiment("figure-2-relu-small", changes=tuple(changes), out=None, **options).experiment
    stated = flattened(found.to_json())
    for change in changes:
        key, _, value = change.partition("=")
        expected = flattened({key: tomllib.loads(f"value = {value}")["value"]})
        assert {name: stated[name] for name in expected} == expected
    if "estimator" in options:
        assert found.lipschitz["method"] == "stated"


def test_all_that_would_be_ignored_is_named_at_once(tmp_path: Path) -> None:
    answer = CliRunner().invoke(cli, ["attack", str(tmp_path), "--eps", "0.9", "--examples", "3"])
    assert all(option in answer.stderr for option in ("--eps", "--examples", "--with"))
