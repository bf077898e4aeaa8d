"""When and on what a page's runs were done, and the commands and files that do them again."""

import shlex
import tomllib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from excite.files import read_json, write_json
from excite.report.page import commands, facts, page, places, toml, toml_value
from excite.runs import load
from excite.runs.collection import by_seed
from excite.runs.experiment import from_values, without_plan
from excite.runs.folder import EXPERIMENT, RunFolder
from excite.runs.records import STAGES, circumstances


def test_a_run_says_its_machine_versions_threads_date_and_total_time(small_run: RunFolder) -> None:
    (place,) = places([small_run])
    now = circumstances(torch.device("cpu"))
    assert place["circumstances"] == now
    assert place["n_stages"] == len(small_run.stages)
    assert {"baseline/outcome.json", "poe/evaluation.json", "estimate.json", "illustration.json"} <= {
        stage.file for stage in small_run.stages
    }
    html = page([small_run])
    for words in (now.machine, place["versions"], place["last"], place["time"], f"<td>{now.threads}</td>"):
        assert words in html


def test_what_was_kept_is_shown_not_what_is_here(write_run: Callable[..., RunFolder]) -> None:
    run = write_run({"baseline": {}})
    where = {"machine": "Plan 9", "device": "abacus", "threads": 3, "versions": {"torch": "0.1"}}
    stages = [
        {"file": "baseline/outcome.json", "began": began, "seconds": 90.0, "finished": done, "circumstances": where}
        for began, done in (("2001-02-03T04:05:00+00:00", False), ("2001-02-03T05:00:00+00:00", True))
    ]
    write_json(run.path / STAGES, {"stages": stages})
    shown = facts(by_seed([run]))
    assert (shown["computing time"], shown["on"]) == ("3 min", "Plan 9, 3 threads")
    assert shown["finished"] == "2001-02-03 05:01 UTC"
    html = page([run])
    assert "torch 0.1" in html
    assert torch.__version__ not in html


def test_a_folder_of_before_renders_and_claims_no_date(write_run: Callable[..., RunFolder]) -> None:
    run = write_run({"baseline": {}})
    assert facts(by_seed([run])).keys().isdisjoint(["finished", "on"])
    html = page([run])
    assert "did not record machines" in html
    assert " UTC" not in html


WriteRun = Callable[..., RunFolder]
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@given(VALUES)
def test_toml_reads_back(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def rewritten(run: RunFolder, **changes: Any) -> RunFolder:
    path = run.path / EXPERIMENT
    write_json(path, read_json(path) | changes)
    return RunFolder(run.path)


def as_shipped(run: RunFolder, **changes: Any) -> RunFolder:
    """`write_run` puts an attack of its own into the experiment; take it out again."""
    return rewritten(run, attacks=load("mnist-sample").to_json()["attacks"], **changes)


@pytest.mark.parametrize(
    "changes", [[], ["training.epochs=3", "model.options.activation=tanh"], ["data.train_examples=100", "seed=4"]]
)
def test_the_command_gives_the_experiment_back(write_run: WriteRun, changes: list[str]) -> None:
    run = as_shipped(write_run({"baseline": {}, "poe": {}, "largest": {}}, changes=changes))
    (command,) = commands(by_seed([run])[0])
    assert command.startswith("excite run mnist-sample")
    words = shlex.split(command)
    overrides = [word for before, word in pairwise(words) if before == "--set"]
    assert len(overrides) == len(changes)
    assert load(words[2], overrides=overrides) == run.experiment


def test_seeds_and_arms_are_named(write_run: WriteRun) -> None:
    runs = [as_shipped(write_run({"baseline": {}, "grid-3": {}}, changes=[f"seed={seed}"])) for seed in range(3)]
    assert commands(by_seed(runs)[0]) == ["excite run mnist-sample --arms baseline,grid-3 --seeds 3"]
    assert commands(by_seed(runs[1:])[0]) == [
        f"excite run mnist-sample --arms baseline,grid-3 --set seed={seed} --out runs/mnist-sample/seed-{seed}"
        for seed in (1, 2)
    ]


def test_what_set_cannot_say_needs_the_file(write_run: WriteRun) -> None:
    run = write_run({"baseline": {}})  # has an attack the catalogue's file has not, and lacks those it has
    assert commands(by_seed([run])[0]) == []
    assert commands(by_seed([as_shipped(run, name="my own")])[0]) == []


def test_the_file_gives_the_experiment_back(write_run: WriteRun) -> None:
    run = write_run({"baseline": {}}, changes=["data.train_examples=100", "training.momentum=0.9"])
    assert from_values(tomllib.loads(toml(run.experiment))) == run.experiment
    hostile = rewritten(run, name='a "name", quoted', summary="]\n[data]\nname = 'x'")
    assert without_plan(from_values(tomllib.loads(toml(hostile.experiment)))) == without_plan(hostile.experiment)
