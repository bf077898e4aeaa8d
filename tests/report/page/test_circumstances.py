"""The page says when and on what a run was done as its stages kept it, and nothing where they did not."""

from collections.abc import Callable

import torch

from excite.files import write_json
from excite.report.page.circumstances import in_short, places
from excite.report.page.page import page
from excite.runs.circumstances import STAGES, here
from excite.runs.folder import RunFolder


def test_a_run_says_its_machine_versions_threads_date_and_total_time(small_run: RunFolder) -> None:
    (place,) = places([small_run])
    now = here(torch.device("cpu"))
    assert place.circumstances == now
    assert place.stages == len(small_run.stages)
    assert {"baseline/outcome.json", "poe/evaluation.json", "estimate.json", "illustration.json"} <= {
        stage.file for stage in small_run.stages
    }
    html = page([small_run])
    for words in (now.machine, place.versions, place.last, place.time, f"<td>{now.threads}</td>"):
        assert words in html


def test_what_was_kept_is_shown_not_what_is_here(write_run: Callable[..., RunFolder]) -> None:
    run = write_run({"baseline": {}})
    where = {"machine": "Plan 9", "device": "abacus", "threads": 3, "versions": {"torch": "0.1"}}
    stages = [
        {"file": "baseline/outcome.json", "began": began, "seconds": 90.0, "finished": done, "circumstances": where}
        for began, done in (("2001-02-03T04:05:00+00:00", False), ("2001-02-03T05:00:00+00:00", True))
    ]
    write_json(run.path / STAGES, {"stages": stages})
    assert in_short([run]) == {
        "computing time": "3 minutes",
        "finished": "2001-02-03 05:01 UTC",
        "on": "Plan 9, 3 threads",
    }
    html = page([run])
    assert "torch 0.1" in html
    assert torch.__version__ not in html


def test_a_folder_of_before_renders_and_claims_no_date(write_run: Callable[..., RunFolder]) -> None:
    run = write_run({"baseline": {}})
    assert list(in_short([run])) == ["computing time"]
    html = page([run])
    assert "did not keep machine" in html
    assert " UTC" not in html
