"""What a run says of itself: lines in a log, a bar with the time left on a terminal, as much as is asked for."""

import io
import time

import pytest
from rich.console import Console as RichConsole

from excite import console
from excite.console import Console, Placed


def test_lines_in_a_log_say_how_far_it_is_and_what_is_left(
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


def test_a_count_that_begins_anew_has_its_own_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    with Console().task("attacks") as progress:
        time.sleep(0.3)
        progress(9, 10)
        progress(1, 10)
        progress(2, 10)
    *_, line, _ = capsys.readouterr().err.splitlines()
    assert line == "attacks: 2 of 10, about 0 s left"  # and not eight times what the first attack took


def test_what_was_done_before_it_was_stopped_is_no_measure_of_what_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 10))  # every look at it is ten seconds later
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    with Console().task("training") as progress:
        progress(901, 1000)  # goes on after a stop
        progress(902, 1000)
    *_, line, _ = capsys.readouterr().err.splitlines()
    assert int(line.split("about ")[1].split()[0]) >= 10 * 98


def test_places_stand_before_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    with Placed(Placed(Console(), "seed 1 of 2"), "stage 3 of 7").task("poe: training"):
        pass
    assert capsys.readouterr().err.startswith("seed 1 of 2, stage 3 of 7, poe: training\n")


def test_quiet_tasks_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Console(quiet=True)
    quiet.say("said")
    with quiet.task("training") as progress:
        progress(1, 2)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_UPDATES", 0.0)
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
