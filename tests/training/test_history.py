from pathlib import Path

import pytest

from excite.errors import CorruptFileError
from excite.training.history import EpochMetrics, append, read, rewind

LINES = [EpochMetrics(number, 0.1, 1 / number, 0.5, {"test_accuracy": 0.9}) for number in (1, 2, 3)]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    for line in LINES:
        append(tmp_path, line)
    assert read(tmp_path) == LINES
    assert str(LINES[1]) == "epoch 2: loss 0.5, test_accuracy 0.9, rate 0.1, 0.5 s"


def test_rewind_drops_what_came_after(tmp_path: Path) -> None:
    for line in LINES:
        append(tmp_path, line)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "ra')  # a line cut off by a kill
    assert rewind(tmp_path, 2) == LINES[:2]
    assert read(tmp_path) == LINES[:2]


def test_damaged_metrics_are_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(CorruptFileError, match="hash"):
        read(tmp_path)


def test_no_metrics_yet(tmp_path: Path) -> None:
    assert read(tmp_path) == []
