"""When and on which machines the runs of a page were made, and how to repeat them."""

import tomllib
from collections.abc import Callable
from typing import Any

import torch

from excite.files import read_json, write_json
from excite.report.page import command, facts, page, places, toml
from excite.report.rows import by_seed
from excite.runs import load
from excite.runs.experiment import from_values
from excite.runs.folder import EXPERIMENT, RunFolder
from excite.runs.records import STAGES, circumstances


def test_shows_machine_versions_threads_date_and_time(small_run: RunFolder) -> None:
    (place,) = places([small_run])
    now = circumstances(torch.device("cpu"))
    assert place["circumstances"] == now
    assert place["n_stages"] == len(small_run.stages)
    assert {"baseline/outcome.json", "poe/evaluation.json", "estimate.json", "illustration.json"} <= {
        stage.file for stage in small_run.stages
    }
    html = page([small_run])
    for words in (now.machine, f"torch {torch.__version__}", place["last"], place["time"], f"<td>{now.threads}</td>"):
        assert words in html


def test_shows_the_recorded_machine_not_this_one(write_run: Callable[..., RunFolder]) -> None:
    run = write_run({"baseline": {}})
    where = {"machine": "Plan 9", "device": "abacus", "threads": 3, "versions": {"torch": "0.1"}}
    stages = [
        {"file": "baseline/outcome.json", "began": began, "seconds": 90.0, "finished": done, "circumstances": where}
        for began, done in (("2001-02-03T04:05:00+00:00", False), ("2001-02-03T05:00:00+00:00", True))
    ]
    write_json(run.path / STAGES, {"stages": stages})
    shown = facts(by_seed([run]))
    assert shown["computing time"] == "3 min"
    assert shown["finished"] == "2001-02-03 05:01 UTC"
    html = page([run])
    assert "torch 0.1" in html
    assert "Plan 9" in html
    assert torch.__version__ not in html


def test_run_without_recorded_stages_has_no_date(write_run: Callable[..., RunFolder]) -> None:
    run = write_run({"baseline": {}})
    assert facts(by_seed([run])).keys().isdisjoint(["finished"])
    html = page([run])
    assert "did not record machines" in html
    assert " UTC" not in html


WriteRun = Callable[..., RunFolder]


def rewritten(run: RunFolder, **changes: Any) -> RunFolder:
    path = run.path / EXPERIMENT
    write_json(path, read_json(path) | changes)
    return RunFolder(run.path)


def as_shipped(run: RunFolder, **changes: Any) -> RunFolder:
    """`write_run` adds its own attack to the experiment; remove it again."""
    return rewritten(run, attacks=load("mnist-sample").to_json()["attacks"], **changes)


def test_command_names_seeds_and_arms(write_run: WriteRun) -> None:
    runs = [as_shipped(write_run({"baseline": {}, "grid-3": {}}, changes=[f"seed={seed}"])) for seed in range(3)]
    assert command(by_seed(runs)[0]) == "excite run mnist-sample --arms baseline,grid-3 --seeds 3"
    assert command(by_seed(runs[:1])[0]) == "excite run mnist-sample --arms baseline,grid-3"


def test_changed_experiment_needs_its_file(write_run: WriteRun) -> None:
    run = write_run({"baseline": {}})  # has another attack than the experiment of the catalogue
    other_seed = as_shipped(write_run({"baseline": {}}, changes=["seed=4"]))
    for changed in (run, as_shipped(run, name="my own"), other_seed):
        assert command(by_seed([changed])[0]) == ""


def test_file_gives_the_experiment_back(write_run: WriteRun) -> None:
    run = write_run({"baseline": {}}, changes=["data.train_examples=100", "training.momentum=0.9"])
    assert from_values(tomllib.loads(toml(run.experiment))) == run.experiment
    hostile = rewritten(run, name='a "name", quoted', summary="]\n[data]\nname = 'x'")
    assert from_values(tomllib.loads(toml(hostile.experiment))).settings() == hostile.experiment.settings()
