"""`excite report` on real and on many run folders."""

import json
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from excite.cli import cli
from excite.evaluation import Evaluation
from excite.report.tables import table
from excite.runs.folder import RunFolder

WriteRun = Callable[..., RunFolder]


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


def test_one_run_prints_its_table_and_writes_its_page(small_run: RunFolder, tmp_path: Path) -> None:
    shown = report(small_run.path, "--out", tmp_path / "page.html")
    assert shown.exit_code == 0, shown.output
    assert shown.output == f"{table(small_run)}\nReport: {tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_folder_of_runs_gets_one_page(write_run: WriteRun) -> None:
    runs = [write_run({"baseline": {}, "poe": {}}, changes=[f"seed={seed}"]) for seed in range(2)]
    folder = runs[0].path.parent
    shown = report(folder, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["report"] == str(folder / "report.html")
    assert "nothing to compare" in report(folder).output
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "run-0", "run-1"]


def test_page_of_several_folders_goes_to_the_current_folder(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [write_run({"baseline": {}}, changes=[f"training.epochs={epochs}"]) for epochs in (1, 2)]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert report(*(run.path for run in runs)).exit_code == 0
    assert "training.epochs 2" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("wanted", "beginning"), [("markdown", "| "), ("latex", "% "), ("csv", "experiment,"), ("json", '{\n  "format": 3')]
)
def test_other_formats_print_only_the_table(small_run: RunFolder, wanted: str, beginning: str) -> None:
    shown = report(small_run.path, "--format", wanted)
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(beginning)
    assert "poe" in shown.output or "PoE" in shown.output
    assert not (small_run.path / "report.html").exists()


def test_open_shows_the_page(write_run: WriteRun, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def start(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", start)
    folder = write_run({"baseline": {}}).path
    assert report(folder, "--open").exit_code == 0
    assert opened == [(folder / "report.html").as_uri()]


def test_refuses_a_format_with_a_page(small_run: RunFolder) -> None:
    assert report(small_run.path, "--format", "csv", "--open").exit_code == 2


def test_reading_needs_no_torch(write_run: WriteRun, evaluated: Callable[..., Evaluation]) -> None:
    """Nothing is trained, attacked or fitted: neither torch nor scipy is imported, and the trace is not opened."""
    run = write_run({name: {"evaluation": evaluated(95, 40)} for name in ("baseline", "poe")})
    code = (
        "import sys\nfrom excite.cli import cli\n"
        f"cli(['report', {str(run.path)!r}], standalone_mode=False)\n"
        "print(sorted({'torch', 'scipy.stats', 'scipy.special'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    assert "no clear difference" in shown
