"""The cases of tests/gpu.py, in a process of their own: torch counts devices once, at the first backward pass."""

import subprocess
import sys
from pathlib import Path


def test_what_runs_on_a_gpu_runs_on_a_pretended_one() -> None:
    cases = Path(__file__).with_name("gpu.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
        cwd=cases.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
