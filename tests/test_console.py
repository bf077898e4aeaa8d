"""Messages and progress: lines in a log, a bar on a terminal, nothing if quiet."""

import io
import itertools
import time

import pytest
from rich.console import Console as RichConsole

from excite import console
from excite.console import Console, Placed, progress_bar


def test_log_lines_show_progress_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    with Console().task("training") as progress:
        progress(1, 4)
        progress(2, 4)
    first, nothing_to_go_by, line, last = capsys.readouterr().err.splitlines()
    assert first == "training"
    assert nothing_to_go_by == "training: 1 of 4"
    assert line.startswith("training: 2 of 4, about ")
    assert line.endswith(" s left")
    assert last.startswith("training, done in ")


def test_estimates_the_time_left_again_when_the_count_restarts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    with Console().task("attacks") as progress:
        time.sleep(0.3)
        progress(9, 10)
        progress(1, 10)
        progress(2, 10)
    *_, line, _ = capsys.readouterr().err.splitlines()
    assert line == "attacks: 2 of 10, about 1 s left"  # rounded up; not eight times the duration of the first attack


def test_ignores_steps_before_a_resume_in_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=10)  # ten seconds pass between two calls
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    with Console().task("training") as progress:
        progress(901, 1000)  # resumed
        progress(902, 1000)
    *_, line, _ = capsys.readouterr().err.splitlines()
    assert int(line.split("about ")[1].split()[0]) >= 10 * 98


def test_prefixes_a_task_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    with Placed(Placed(Console(), "seed 1 of 2"), "stage 3 of 7").task("poe: training"):
        pass
    assert capsys.readouterr().err.startswith("seed 1 of 2, stage 3 of 7, poe: training\n")


def test_quiet_console_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Console(quiet=True)
    quiet.say("said")
    with quiet.task("training") as progress:
        progress(1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_for_terminals(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    seen: list[int] = []
    with progress_bar("Evaluating", None) as progress:
        progress(1, 2)
    assert ("Evaluating" in capsys.readouterr().err) == terminal
    with progress_bar("Evaluating", lambda done, _: seen.append(done)) as progress:
        progress(1, 2)
    assert seen == [1]
    assert capsys.readouterr().err == ""


def test_terminal_shows_a_bar_with_the_time_left() -> None:
    speaking, screen = Console(), io.StringIO()
    speaking.rich = RichConsole(file=screen, force_terminal=True, width=100, _environ={})
    with speaking.task("training") as progress:
        progress(30, 100)
        speaking.say("an epoch ended")
    shown = screen.getvalue()
    assert "━" in shown
    assert "30/100" in shown
    assert "-:--:--" in shown or "0:00:0" in shown
    assert "an epoch ended" in shown
