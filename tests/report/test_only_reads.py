"""A page is drawn from what the stages stored: it needs no weights, no traces, no data and no estimator."""

import shutil
from pathlib import Path

import pytest

from excite import lipschitz
from excite.report.page import page
from excite.runs.folder import RunFolder


def test_page_needs_no_weights_traces_or_data(
    small_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = shutil.ignore_patterns("*.safetensors", "checkpoint.json")
    bare = shutil.copytree(small_run.path, tmp_path / small_run.path.name, ignore=kept)
    monkeypatch.setenv("EXCITE_DATA", str(tmp_path / "no data"))
    for kind in lipschitz.ESTIMATORS.values():
        monkeypatch.setattr(kind, "__call__", None)
    assert page([RunFolder(Path(bare))]) == page([small_run])
