"""Bad input, case by case: exit code 2, one line that names the cure, no traceback, nothing written or changed."""

import hashlib
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from excite.cli import main

# A line: a command line, and a keyword of its error. RUN is a run folder with a trained and attacked baseline.
COMMANDS = (Path(__file__).parent / "bad_commands.txt").read_text(encoding="utf-8")
CASES = [tuple(part.strip() for part in line.rsplit("|", 1)) for line in COMMANDS.splitlines()]
THEIRS = """
from torch import nn

number = 3

def digits():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def sized(width):
    return nn.Linear(width, 10)

def broken():
    raise RuntimeError("no weights for you")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_experiment: str) -> Path:
    """A folder with a run in it, and files that are not what they seem."""
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "tiny.toml").write_text(tiny_experiment, encoding="utf-8")
    (folder / "unknown-key.toml").write_text(tiny_experiment.replace("epochs", "epoch"), encoding="utf-8")
    (folder / "broken.toml").write_text("name = ", encoding="utf-8")
    (folder / "empty.toml").touch()
    (folder / "binary.toml").write_bytes(b"\x80\x81\xff\x00")
    (folder / "folder.toml").mkdir()
    (folder / "empty").mkdir()
    (folder / "theirs.py").write_text(THEIRS, encoding="utf-8")
    torch.save({"0.weight": torch.zeros(2)}, folder / "w.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main(["run", "tiny.toml", "--arms", "baseline", "--out", "RUN", "-q"])
    assert not ended.value.code
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every file but locks and caches, with the hash of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
        if not path.name.endswith(".lock") and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(("command", "fragment"), CASES, ids=[command for command, _ in CASES])
def test_refuses_a_bad_command_line(
    command: str, fragment: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("EXCITE_DATA", str(place / "data"))
    shutil.rmtree(place / "runs", ignore_errors=True)  # of a case that was not refused: it must not hide the next
    before = contents(place)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(command.replace("{long}", "x" * 300)))
    printed = capsys.readouterr()
    assert stopped.value.code == 2, printed.err
    assert fragment in printed.err.replace("\n", " ")
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert contents(place) == before


def test_bad_commands_are_unique() -> None:
    assert len(CASES) == len(set(CASES))
    assert len(CASES) >= 250
