"""`excite` as a process of its own, or in this one, which has torch already."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from excite.cli import main


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """A process in the folder `cwd`."""
    return subprocess.Popen(
        [sys.executable, "-m", "excite", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "EXCITE_DATA": str(cwd / "data"), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call_process(*arguments: str | Path, cwd: Path, code: int = 0) -> tuple[str, str]:
    """Run a process to its end, expect an exit code, and return what it printed."""
    process = start(*arguments, cwd=cwd)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == code, stderr
    return stdout, stderr


def call(*arguments: str | Path, cwd: Path, code: int = 0) -> tuple[str, str]:
    """The same in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.chdir(cwd)
        patch.setenv("EXCITE_DATA", str(cwd / "data"))
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments)])
    assert (end.value.code or 0) == code, stderr.getvalue()
    return stdout.getvalue(), stderr.getvalue()
