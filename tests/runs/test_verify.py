"""What sound files say that cannot be; damaged ones are in tests/faults."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from excite.files import read_json, write_json
from excite.runs.folder import RunFolder
from excite.runs.verify import verify


@pytest.fixture
def run(small_run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(small_run.path, tmp_path / "run")))


def test_a_run_is_as_it_was_written(run: RunFolder) -> None:
    found = verify(run.path)
    assert found.files == len(run.files())
    assert not found.problems


def test_files_that_contradict_each_other(run: RunFolder) -> None:
    outcome = run.arm("poe").outcome_file
    write_json(outcome, read_json(outcome) | {"epochs": 7})
    (problem,) = verify(run.path).problems
    assert "metrics.jsonl" in problem


def test_an_arm_at_another_rate_than_it_chooses(run: RunFolder) -> None:
    shutil.copytree(run.arm("baseline").path, run.arm("placebo").path)
    rate = run.arm("baseline").rate
    (problem,) = verify(run.path).problems
    assert f"at the rate {rate:.6g}, but" in problem
    assert f"it is {1.15 * rate:.6g}" in problem


def test_a_rate_whose_reason_was_not_kept_is_not_judged(run: RunFolder) -> None:
    run.estimate_file().unlink()
    assert not verify(run.path).problems


def change(path: Path, *keys: str, to: Any) -> None:
    """Write another value into a file, with a fitting hash."""
    content = read_json(path)
    table = content
    for key in keys[:-1]:
        table = table[key]
    table[keys[-1]] = to(table[keys[-1]]) if callable(to) else to
    write_json(path, content)


def test_an_estimate_outside_its_interval(run: RunFolder) -> None:
    constant = read_json(run.estimate_file())["estimate"]["constant"]
    change(run.estimate_file(), "estimate", "interval", to=[2 * constant, 3 * constant])
    (problem,) = verify(run.path).problems
    assert "interval" in problem


@pytest.mark.parametrize(
    ("method", "details"),
    [
        ("edge", {"converged": [True, True]}),
        ("online", {"good": [0.1, 0.4], "breaks": [0.2]}),
        ("curvature", {"curvatures": [4.0], "residuals": [1.0]}),
        ("epochs", {"protocol": "paper", "fit": {"identified": False}}),
        ("epochs", {"protocol": "authors", "fit": {"identified": True}}),
        ("stated", {}),
        ("online", {"good": "none"}),
    ],
)
def test_an_identified_l_whose_details_say_otherwise(run: RunFolder, method: str, details: dict[str, Any]) -> None:
    for key, value in {"identified": True, "method": method, "details": details}.items():
        change(run.estimate_file(), "estimate", key, to=value)
    assert any("identified" in problem or "breaks" in problem for problem in verify(run.path).problems)


def test_an_interval_that_does_not_follow_from_the_outcomes(run: RunFolder) -> None:
    evaluation = run.arm("poe").evaluation_file
    change(evaluation, "clean", "interval", to=lambda ends: [end * (1 + 1e-12) for end in ends])
    assert not verify(run.path).problems
    change(evaluation, "clean", "interval", to=lambda ends: [end * (1 + 1e-3) for end in ends])
    (problem,) = verify(run.path).problems
    assert "intervals" in problem


def test_a_certificate_that_does_not_follow_from_the_trace(run: RunFolder) -> None:
    change(run.arm("poe").certificate_file, "certified", to=lambda count: count + 1)
    (problem,) = verify(run.path).problems
    assert "trace" in problem


def test_committed_results_are_sound() -> None:
    results = Path(__file__).parents[2] / "results" / "batch-size-in-expectation"
    found = verify(results / "figure-4-small" / "batch_size-32,seed-0")
    assert found.files
    assert not found.problems
