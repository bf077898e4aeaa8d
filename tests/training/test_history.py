from pathlib import Path

import pytest

from excite.errors import CorruptFileError
from excite.training import EpochMetrics, append_metrics, read_metrics, rewind_metrics

LINES = [EpochMetrics(number, 0.1, 1 / number, 0.5, {"test_accuracy": 0.9}) for number in (1, 2, 3)]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    for line in LINES:
        append_metrics(tmp_path, line)
    assert read_metrics(tmp_path) == LINES
    assert str(LINES[1]) == "epoch 2: loss 0.5, test_accuracy 0.9, rate 0.1, 0.5 s"


def test_rewind_drops_what_came_after(tmp_path: Path) -> None:
    for line in LINES:
        append_metrics(tmp_path, line)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "ra')  # a line cut off by a kill
    assert rewind_metrics(tmp_path, 2) == LINES[:2]
    assert read_metrics(tmp_path) == LINES[:2]


def test_damaged_metrics_are_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(CorruptFileError, match="hash"):
        read_metrics(tmp_path)


def test_no_metrics_yet(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
