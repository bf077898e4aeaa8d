"""A run killed at any moment, or stopped by a full disk, and started again ends with the files of one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from excite.runs.circumstances import STAGES
from excite.trace import Trace
from tests.faults.conftest import EXPERIMENT

KILLS = int(os.environ.get("EXCITE_FAULTS", "25"))  # of each objective
SIZES = int(os.environ.get("EXCITE_FAULTS", "20"))
TIMES = ("seconds", "sha256", "training_seconds", "estimate_seconds")

OBJECTIVES: dict[str, Any] = {
    "standard": {},
    "trades": {"training": {"objective": {"kind": "trades", "eps": 0.1, "step": 0.05, "steps": 2}}},
}


def described(folder: Path, changes: dict[str, Any]) -> Path:
    """The experiment's file, with L from short trainings."""
    values: dict[str, Any] = EXPERIMENT | {"lipschitz": {"method": "edge", "steps": 4}}
    values |= {key: values.get(key, {}) | change for key, change in changes.items()}
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


def command(experiment: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "excite", "run", str(experiment), "--out", str(out), "--device", "cpu"]


def start(experiment: Path, out: Path, prepare: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(experiment, out),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,  # noqa: PLW1509
    )


def finish(experiment: Path, out: Path) -> float:
    started = time.monotonic()
    process = start(experiment, out)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return time.monotonic() - started


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(entry) for key, entry in value.items() if key not in TIMES}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def traced(path: Path) -> dict[str, Any]:
    """What a trace holds; the order inside its header is chance."""
    values = asdict(Trace.load(path))
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in values.items()}


def artefacts(run: Path) -> dict[str, Any]:
    """Every JSON file but for clocks; weights and traces by their hashes."""
    described = [path for path in run.rglob("*.json") if path.name != STAGES]  # which tells of every go
    found = {str(path.relative_to(run)): timeless(json.loads(path.read_text())) for path in described}
    for path in run.rglob("metrics.jsonl"):
        found[str(path.relative_to(run))] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
    for path in run.rglob("*.safetensors"):
        found[str(path.relative_to(run))] = traced(path) if path.name == "trace.safetensors" else ""
    return found


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_killed_at_random_moments(objective: str, tmp_path: Path) -> None:
    experiment = described(tmp_path, OBJECTIVES[objective])
    seconds = finish(experiment, tmp_path / "whole")
    rng = random.Random(objective)  # noqa: S311
    same = 0
    for number in range(KILLS):
        out = tmp_path / f"killed-{number}"
        process = start(experiment, out)
        time.sleep(rng.uniform(0.3, 0.98) * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        finish(experiment, out)
        same += artefacts(out) == artefacts(tmp_path / "whole")
        assert not [path for path in out.rglob(".*.part") if path.parent.name != "run"]
    print(f"{objective}: {same} of {KILLS} killed runs ended with identical files")
    assert same == KILLS


@pytest.mark.slow
def test_a_full_disk_stops_with_a_message_and_goes_on(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    experiment = described(tmp_path, {})
    finish(experiment, tmp_path / "whole")
    stopped = same = 0
    for number in range(SIZES):
        out, size = tmp_path / f"full-{number}", round(500 * 1.5**number)

        def limit(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        process = start(experiment, out, limit)
        _, said = process.communicate()
        assert process.returncode in (0, 1), said
        assert "Traceback" not in said
        if process.returncode:
            stopped += 1
            assert "No room left to write" in said
        finish(experiment, out)
        same += artefacts(out) == artefacts(tmp_path / "whole")
    print(
        f"full disk: {stopped} of {SIZES} stopped with the message, {same} of {SIZES} then ended with identical files"
    )
    assert same == SIZES
