"""Killed sweeps, and two runners in one folder: every stage is done exactly once, with the same files."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from excite.runs.folder import RunFolder
from tests.contents import contents
from tests.faults.conftest import EXPERIMENT
from tests.faults.processes import Excite


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(tomli_w.dumps(EXPERIMENT), encoding="utf-8")
    return path


def done(run: Path) -> Counter[str]:
    """How often each stage came to its end."""
    return Counter(stage.file for stage in RunFolder(run).stages if stage.finished)


ONCE = {f"{arm}/{stage}.json": 1 for arm in ("baseline", "poe") for stage in ("outcome", "evaluation")}


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_two_runners(experiment: Path, tmp_path: Path, times: int) -> None:
    rng = random.Random(0)  # noqa: S311
    assert Excite("run", experiment, "--out", tmp_path / "first").end()[0] == 0  # with what starts all of them
    began = time.monotonic()
    assert Excite("run", experiment, "--out", tmp_path / "whole").end()[0] == 0
    seconds, whole = time.monotonic() - began, contents(tmp_path / "whole")
    expected = done(tmp_path / "whole")
    assert expected.items() >= ONCE.items()
    for number in range(times):
        out = tmp_path / f"two-{number}"
        first = Excite("run", experiment, "--out", out)
        time.sleep(rng.random() * seconds if number else 0.0)
        second = Excite("run", experiment, "--out", out)
        for process in (first, second):
            code, said = process.end()
            assert code == 0, said
        assert done(out) == expected
        assert contents(out) == whole
    print(f"{times} of {times} pairs of runners did every stage exactly once, with identical files")


def sweep(experiment: Path, out: Path) -> "subprocess.Popen[str]":
    command = ["sweep", experiment, "--arms", "baseline,poe", "--workers", "2", "--out", out, "--device", "cpu"]
    return subprocess.Popen(
        [sys.executable, "-m", "excite", *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished_sweep(experiment: Path, out: Path) -> float:
    began = time.monotonic()
    process = sweep(experiment, out)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "in_a_row"), [(20, 4)])
def test_killed_sweeps(experiment: Path, tmp_path: Path, kills: int, in_a_row: int) -> None:
    """Whole sweeps are killed, several times one after the other; then one comes to its end."""
    rng = random.Random(0)  # noqa: S311
    seconds = finished_sweep(experiment, tmp_path / "whole")
    whole: dict[str, Any] = contents(tmp_path / "whole")
    killed = same = number = 0
    while killed < kills:
        out = tmp_path / f"killed-{number}"
        number += 1
        for turn in range(in_a_row):
            process, until = sweep(experiment, out), rng.uniform(0.3, 1.0) * seconds
            time.sleep(until)
            if process.poll() is None:
                killed += 1
            elif turn == 0:
                seconds = until  # the machine has become faster
            process.send_signal(signal.SIGKILL)
            process.communicate()
        finished_sweep(experiment, out)
        assert contents(out) == whole
        assert set(done(out / "seed-0").values()) == {1}, done(out / "seed-0")
        same += 1
    print(f"{killed} kills of {number} sweeps: {same} of {number} did every job exactly once, with identical files")
