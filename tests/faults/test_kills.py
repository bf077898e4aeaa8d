"""Killed, stopped or out of room at any moment and started again, a run ends with the files of one that was not."""

import random
import signal
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.contents import contents
from tests.faults.conftest import EXPERIMENT
from tests.faults.processes import Excite

CHANGES: dict[str, Any] = {
    "standard": {},
    "TRADES": {"training": {"objective": {"kind": "trades", "eps": 0.1, "step": 0.05, "steps": 2}}},
    "dropout": {"model": {"name": "dropping"}, "arms": ["baseline", "poe", "grid:2"]},
}
STAGES = ("baseline/outcome", "baseline/evaluation", "estimate", "poe/outcome", "poe/evaluation", "illustration")


class Killable:
    """One experiment, with L from short trainings: run to its end, and then again and again with signals on the way."""

    def __init__(self, folder: Path, changes: dict[str, Any]) -> None:
        lipschitz = {"method": "edge", "steps": 4, "limit": 1.0}
        values: dict[str, Any] = EXPERIMENT | {"lipschitz": lipschitz, "allow_unidentified": True}
        values |= {key: values[key] | change if isinstance(change, dict) else change for key, change in changes.items()}
        self.folder, self.experiment = folder, folder / "experiment.toml"
        self.experiment.write_text(tomli_w.dumps(values), encoding="utf-8")
        process = self.begun("whole")
        began = time.monotonic()
        assert process.end()[0] == 0
        self.seconds, self.whole = time.monotonic() - began, contents(folder / "whole")

    def start(self, out: str, **limits: int) -> Excite:
        return Excite("run", self.experiment, "--out", self.folder / out, "--device", "cpu", **limits)

    def begun(self, out: str) -> Excite:
        process = self.start(out)
        while process.alive and not (self.folder / out).exists():
            time.sleep(0.01)
        return process

    def stopped(self, out: str, number: signal.Signals, after: float) -> tuple[int, float] | None:
        """Its exit code and how long it took to end; None where the run was over before the signal came."""
        process = self.begun(out)
        time.sleep(after)
        heard, began = process.send(number), time.monotonic()
        code, said = process.end()
        assert "Traceback" not in said, said
        return (code, time.monotonic() - began) if heard and code else None

    def stage(self, out: str) -> str:
        """What a stopped run was at: the first file that it has not left."""
        return next((stage for stage in STAGES if not (self.folder / out / f"{stage}.json").exists()), "the rest")

    def other_files(self, out: str) -> list[str]:
        """Go on with it; then the files that are not those of the run that nobody stopped."""
        code, said = self.start(out).end()
        assert code == 0, said
        found = contents(self.folder / out)
        return sorted(name for name in found.keys() | self.whole.keys() if found.get(name) != self.whole.get(name))


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda kind: Killable(tmp_path_factory.mktemp(kind), CHANGES[kind]))


def stop(run: Killable, kind: str, number: signal.Signals, times: int) -> tuple[list[int], list[float], Counter[str]]:
    """Stop `times` runs at moments spread over their whole length; all of them end the same."""
    rng = random.Random(f"{kind}{number}")  # noqa: S311
    codes, seconds, stages = list[int](), list[float](), Counter[str]()
    tries = 0
    while len(codes) < times:
        tries += 1
        out, share = f"{number.name}-{tries}", (len(codes) + rng.random()) / times
        if stopped := run.stopped(out, number, share * run.seconds):
            codes.append(stopped[0])
            seconds.append(stopped[1])
            stages[run.stage(out)] += 1
            assert run.other_files(out) == [], f"{kind}, {number.name} after {share:.0%}"
        else:
            run.seconds *= 0.9  # the first one, by which they are measured, had to warm up
        assert tries < 10 * times
    return codes, seconds, stages


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("times", [1, pytest.param(17, marks=pytest.mark.slow)])
def test_killed(killable: Any, kind: str, times: int) -> None:
    codes, _, stages = stop(killable(kind), kind, signal.SIGKILL, times)
    print(f"{kind}: {len(codes)} of {times} killed runs ended with identical files; killed at {dict(stages)}")
    assert codes == [-signal.SIGKILL] * times


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_stopped(killable: Any, number: signal.Signals, code: int, times: int) -> None:
    codes, seconds, stages = stop(killable("TRADES"), "TRADES", number, times)
    print(
        f"{number.name}: {codes.count(code)} of {times} ended with {code}, the slowest after {max(seconds):.1f} s, and "
        f"then with identical files; stopped at {dict(stages)}"
    )
    assert codes == [code] * times


@pytest.mark.parametrize("sizes", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_full_disk(killable: Any, sizes: int) -> None:
    """No file can grow beyond a size: from less than the smallest file to the largest."""
    run = killable("standard")
    largest = max(path.stat().st_size for path in (run.folder / "whole").rglob("*") if path.is_file())
    stopped = 0
    for number in range(sizes):
        size = round(100 * (largest / 100) ** (number / sizes))
        code, said = run.start(f"full-{number}", largest_file=size).end()
        assert "Traceback" not in said
        if code:
            stopped += 1
            assert code == 1
            assert "same command" in said
        assert run.other_files(f"full-{number}") == [], f"stopped at {size} bytes"
    print(f"full disk: {stopped} of {sizes} sizes stopped it with the message, {sizes} of {sizes} then identical")
    assert stopped > sizes / 2
