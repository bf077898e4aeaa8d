"""A tiny experiment of the user's own, and the command line run as people run it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TINY = """
name = "tiny"

[data]
name = "mnist-sample"
train_examples = 320
test_examples = 40

[model]
name = "lenet5"

[training]
epochs = 2
batch_size = 32
schedule = { kind = "step", rate = 0.05, milestones = [1] }

[lipschitz]
runs = 6
steps = 40

[attacks]
"PGD-3" = { kind = "pgd", eps = 0.1, step = 0.05, steps = 3, random_start = true }
"""

Start = Callable[..., subprocess.Popen[str]]
Call = Callable[..., tuple[str, str]]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start `excite` with these arguments in the test's folder."""

    def begin(*arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "excite", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1", "EXCITE_DATA": str(tmp_path / "data")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


@pytest.fixture
def call(start: Start) -> Call:
    """Run `excite` to its end, expect an exit code, and return what it printed."""

    def run(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
        process = start(*arguments)
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == code, stderr
        return stdout, stderr

    return run
