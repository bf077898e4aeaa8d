"""Nothing trains at an L that is not identified, unless somebody asks for it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from excite.console import Console
from excite.errors import InputError, UnidentifiedError
from excite.runs import load
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run

Call = Callable[..., tuple[str, str]]


@pytest.fixture
def vague(tiny: Path) -> Path:
    """An experiment whose L cannot be identified: its runs are too short and too few."""
    text = tiny.read_text(encoding="utf-8").replace("allow_unidentified = true", "")
    tiny.write_text(text.replace("steps = 20", "steps = 4"), encoding="utf-8")
    return tiny


def test_an_l_that_is_not_identified_stops_the_run_and_keeps_what_it_has(
    vague: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "run"
    _, told = call("run", vague, "--out", out, code=6)
    assert "--force" in told
    run = RunFolder(out)
    assert [arm.name for arm in run.arms] == ["baseline"]
    assert run.arm("baseline").evaluation
    assert run.estimate
    assert not run.estimate.identified
    call("run", vague, "--out", out, "--force")
    assert [arm.name for arm in RunFolder(out).arms] == ["baseline", "poe", "largest"]
    assert json.loads(run.experiment_file.read_text(encoding="utf-8"))["allow_unidentified"] is True


def test_the_other_arms_are_trained_and_every_wanted_l_is_shown(vague: Path, tmp_path: Path, call: Call) -> None:
    presets = (
        'estimators.stated={method="stated",constant=20.0}',
        'estimators.paper={method="epochs",protocol="text",n_maxima=10,bootstraps=0,wanted=true}',
        'estimators.short={method="edge",steps=4,limit=1.0,wanted=true}',
    )
    changes = [part for preset in presets for part in ("--set", preset)]
    arms = "baseline,poe@short,poe@stated"
    shown, told = call("run", vague, *changes, "--estimator", "stated", "--arms", arms, "--out", "run", code=6)
    assert "poe@short" in told.splitlines()[-1]
    run = RunFolder(tmp_path / "run")
    assert [arm.name for arm in run.arms] == ["baseline", "poe@stated"]
    assert {"short", "paper"} <= run.estimates.keys()
    assert "L by other estimators" in shown
    assert all(f"{name} " in shown.partition("L by other estimators")[2] for name in ("short", "paper"))


def test_a_stated_l_is_trained_at(vague: Path, tmp_path: Path) -> None:
    stated = load(str(vague), overrides=["lipschitz={method='stated', constant=20.0}"])
    run = Run(tmp_path / "run", stated, console=Console())
    run.train("poe")
    assert run.files.arm("poe").rate == 0.05


def test_a_budget_that_pays_for_no_run_is_refused(tiny: Path, tmp_path: Path) -> None:
    small = load(str(tiny), overrides=["lipschitz={method='edge', budget=0.1, limit=0.1}"])
    with pytest.raises(InputError, match="budget"):
        Run(tmp_path / "run", small, console=Console()).estimate()


def test_the_number_of_threads_is_pinned_and_part_of_the_experiment(tiny: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        Run(tmp_path / "run", load(str(tiny), overrides=["training.threads=3"]), console=Console())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    with pytest.raises(InputError, match="threads"):
        Run(tmp_path / "run", load(str(tiny)), console=Console())


def test_an_unidentified_l_of_one_arm_is_named_in_its_error(vague: Path, tmp_path: Path) -> None:
    with pytest.raises(UnidentifiedError, match="--force"):
        Run(tmp_path / "run", load(str(vague)), console=Console()).train("poe")
