"""Sweeps as people run them: real processes, really killed, on a folder that two sweeps share."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from excite import execution
from excite.cli import cli
from excite.console import Console
from excite.errors import ExciteError, InputError
from excite.evaluation import Evaluation
from excite.execution import Shards
from excite.runs import load
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.sweeps import jobs_at_once
from excite.sweeps import sweep as sweep_here
from tests.faults.processes import FORKED, Excite

Start = Callable[..., subprocess.Popen[str]]
Call = Callable[..., tuple[str, str]]

LONG = ("--set", "training.epochs=30", "--arms", "baseline")
SMALL = ("--set", "data.train_examples=64", "--set", "data.test_examples=20", "--set", "lipschitz.steps=5")


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of sweeps in this process start at once; those of other processes are spawned."""
    monkeypatch.setattr(execution, "SPAWN", FORKED)


def wait_for(condition: Callable[[], bool], running: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert running()
        assert time.monotonic() < until
        time.sleep(0.02)


def workers(log: Path) -> list[int]:
    """The processes that took up a job, by its log."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [int(number) for number in re.findall(r"in process (\d+)$", text, re.MULTILINE)]


def epochs_done(run: Path) -> int:
    metrics = run / "baseline/metrics.jsonl"
    return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8")


def kill_at_work(run: Path, running: Callable[[], bool], times: int) -> None:
    """Kill the worker of a run's baseline, each time after it got further."""
    log = run / "baseline.log"
    for number in range(1, times + 1):
        before = epochs_done(run)
        wait_for(lambda: len(workers(log)) == number and epochs_done(run) > before, running)  # noqa: B023
        os.kill(workers(log)[-1], signal.SIGKILL)


def stages(run: Path) -> dict[str, str]:
    """What the stages of a run have left behind."""
    files = [file for file in run.rglob("*.json") if file.name != "checkpoint.json"]
    return {str(file.relative_to(run)): file.read_text(encoding="utf-8") for file in files}


def weights(run: Path) -> str:
    return str(json.loads((run / "baseline/checkpoint.json").read_text(encoding="utf-8"))["weights_sha256"])


def undisturbed(tiny: Path, folder: Path, seed: int, epochs: int = 30) -> str:
    """The weights that the same training ends with when nobody kills it."""
    run = Run(folder, load(str(tiny), overrides=[f"training.epochs={epochs}", f"seed={seed}"]), console=Console())
    run.train("baseline")
    return weights(folder)


def test_a_killed_job_goes_on_from_its_checkpoint(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "sweep/seed-0"
    killer = threading.Thread(target=kill_at_work, args=(run, threading.main_thread().is_alive, 1))
    killer.start()
    once = ("--set", "training.epochs=12", "--workers", "1", "--out", str(tmp_path / "sweep"))
    cli(["sweep", str(tiny), *LONG, *once], standalone_mode=False)
    killer.join()
    assert "1 of 1 jobs done, 0 failed" in capfd.readouterr().out
    assert len(workers(run / "baseline.log")) == 2
    assert epochs_done(run) == 12
    assert weights(run) == undisturbed(tiny, tmp_path / "whole", seed=0, epochs=12)


@pytest.mark.parametrize(
    ("device", "at_once"), [("cpu", None), ("cuda", None), ("cuda:0", 1), ("cuda:1", 1), ("mps", 1)]
)
def test_one_accelerator_runs_one_job_at_a_time(device: str, at_once: int | None) -> None:
    assert jobs_at_once(torch.device(device)) == at_once


def test_jobs_on_one_device_share_a_process(tiny: Path, tmp_path: Path) -> None:
    """Torch's meta device stands for a GPU: every training on it fails, and the logs say where."""
    arguments = ["sweep", str(tiny), *LONG, "--seeds", "3", "--device", "meta", "--out", str(tmp_path)]
    with pytest.raises(ExciteError, match="3 of 3 jobs failed"):
        cli(arguments, standalone_mode=False)
    assert len({process for log in tmp_path.glob("*/baseline.log") for process in workers(log)}) == 1


def test_ray_chooses_the_gpus(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--device cpu"):
        sweep_here(load(str(tiny)), tmp_path, console=Console(), device="cpu:0", jobs_in=Shards(engine="ray"))


@pytest.mark.slow
def test_a_job_killed_too_often_stops_no_other(tiny: Path, tmp_path: Path) -> None:
    arguments = ("sweep", tiny, *LONG, "--seeds", "2", "--workers", "1", "--out", tmp_path / "sweep")
    unlucky, lucky = tmp_path / "sweep/seed-0", tmp_path / "sweep/seed-1"
    sweep = Excite(*arguments)
    kill_at_work(unlucky, lambda: sweep.alive, times=3)
    code, said = sweep.end()
    assert code == 1, said
    assert "1 of 2 jobs failed" in said
    assert "baseline.log" in said
    assert not (unlucky / "baseline/outcome.json").exists()
    assert (lucky / "baseline/outcome.json").exists()
    assert Excite(*arguments).end()[0] == 0
    for seed, folder in enumerate((unlucky, lucky)):
        assert weights(folder) == undisturbed(tiny, tmp_path / f"whole-{seed}", seed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_stops_its_processes(tiny: Path, tmp_path: Path, start: Start, number: signal.Signals) -> None:
    process = start("sweep", tiny, *LONG, "--set", "training.epochs=100000", "--out", "sweep")
    run = tmp_path / "sweep/seed-0"
    # The second epoch's line follows the first one's checkpoint.
    wait_for(lambda: epochs_done(run) > 1, lambda: process.poll() is None)
    (worker,) = workers(run / "baseline.log")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), stderr
    until = time.monotonic() + 60
    while alive(worker):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert json.loads((run / "baseline/checkpoint.json").read_text(encoding="utf-8"))["position"]["epoch"] > 0


def test_two_sweeps_in_one_folder_do_everything_once(tiny: Path, tmp_path: Path) -> None:
    arguments = ("sweep", tiny, *SMALL, "--arms", "baseline,poe", "--workers", "1", "--out", tmp_path / "sweep")
    for sweep in (Excite(*arguments), Excite(*arguments)):
        code, said = sweep.end()
        assert code == 0, said
        assert "jobs done, 0 failed" in said
    logs = [log.read_text(encoding="utf-8") for log in (tmp_path / "sweep/seed-0").glob("*.log")]
    lines = [line for log in logs for line in log.splitlines() if ", done in" in line]
    for stage in ("baseline: training", "baseline: PGD-3", "L by edge", "poe: training", "poe: PGD-3"):
        assert len([line for line in lines if line.startswith(stage)]) == 1, lines


def test_a_diverged_training_is_a_result_of_a_sweep(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["sweep", str(tiny), "--arms", "baseline", "--set", "sweep.training.schedule.rate=[0.05, 1000.0]"]
    cli(arguments, standalone_mode=False)
    stdout, stderr = capfd.readouterr()
    assert "2 of 2 jobs done, 1 of them diverged, 0 failed, in runs/tiny-sweep" in stdout
    assert "rate-1000.0,seed-0 baseline diverged in" in stderr
    cli(arguments, standalone_mode=False)
    assert capfd.readouterr() == (stdout, "")


def test_arms_and_seeds_can_be_added(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # in 120, digits of another machine can break the arm's name in two
    small = ["run", str(tiny), *SMALL, "--out", "runs"]
    cli([*small, "--arms", "baseline", "--seeds", "1"], standalone_mode=False)
    before = stages(tmp_path / "runs/seed-0")
    for of_every_arm in ("illustration.json", "stages.json"):
        before.pop(of_every_arm)
    capfd.readouterr()
    cli([*small, "--arms", "baseline,grid:2", "--seeds", "2"], standalone_mode=False)
    stdout, stderr = capfd.readouterr()
    assert stderr.count("baseline: training at rate 0.05, done") == 1  # that of seed 1
    assert stderr.count("grid-2: trying 2 rates, done") == 2
    assert "grid search, 2 rates" in stdout
    assert "Report: runs/report.html" in stdout
    after = stages(tmp_path / "runs/seed-0")
    assert after.items() >= before.items()
    assert {"grid-2/search.json", "grid-2/outcome.json", "grid-2/evaluation.json"} <= after.keys()
    with pytest.raises(InputError, match="runs"):
        cli(small, standalone_mode=False)


@pytest.mark.slow
def test_a_shared_attack_gives_the_same_verdicts(tiny: Path, tmp_path: Path, call: Call) -> None:
    pytest.importorskip("ray")
    arguments = ("sweep", tiny, "--arms", "baseline", "--set", "data.test_examples=300")  # three batches
    verdicts = {}
    for name, shards in {"alone": (), "shared": ("--shards", "2"), "ray": ("--shards", "2", "--engine", "ray")}.items():
        call(*arguments, *shards, "--out", name)
        verdicts[name] = Evaluation.load(tmp_path / name / "seed-0/baseline/evaluation.json").outcomes("worst").tolist()
    assert verdicts["shared"] == verdicts["alone"] == verdicts["ray"]


@pytest.mark.slow
def test_ray_starts_a_killed_job_again(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    two = ("--seeds", "2", "--workers", "2", "--out", tmp_path / "sweep")
    sweep = Excite("sweep", tiny, *LONG, "--engine", "ray", *two)
    run = tmp_path / "sweep/seed-0"
    kill_at_work(run, lambda: sweep.alive, times=1)
    code, said = sweep.end()
    assert code == 0, said
    assert "jobs done, 0 failed" in said
    assert len(workers(run / "baseline.log")) == 2
    assert epochs_done(run) == 30


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_jobs_that_wait_for_an_l_leave_room_for_the_job_that_makes_it(
    tiny: Path, tmp_path: Path, call: Call, engine: str, workers: str
) -> None:
    """Here one job makes L and the baseline that it needs, which no job is for, and all others wait."""
    if engine == "ray":
        pytest.importorskip("ray")
    shared = 'lipschitz={method="local",n_points=2,bootstraps=0,shared=true}'
    small = ("--set", shared, "--set", "data.train_examples=64", "--arms", "poe,largest", "--seeds", "2")
    jobs_in = ("--engine", engine, "--workers", workers)
    stdout, _ = call("sweep", tiny, *small, *jobs_in, "--out", "sweep", "--json")
    assert {job["status"] for job in json.loads(stdout)["jobs"]} == {"done"}
    first, second = (RunFolder(tmp_path / f"sweep/seed-{seed}") for seed in (0, 1))
    assert first.estimate
    assert second.estimate
    assert second.estimate.constant == first.estimate.constant
    assert second.estimate.basis.startswith("shared by the study, estimated in seed-0: ")
    assert [run.arm("poe").rate for run in (first, second)] == [first.estimate.learning_rate()] * 2
    assert [run.arm("baseline").trained for run in (first, second)] == [True, False]


def test_a_sweep_leaves_the_l_that_figure_2_marks(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = 'lipschitz={method="stated",constant=8.0,wanted=true}'
    settings = ["--set", wanted, "--set", 'training.schedule={kind="constant",rate=0.05}', "--arms", "baseline"]
    rates = ["--set", "sweep.training.schedule.rate=[0.02, 0.05]", "--set", "data.train_examples=64"]
    cli(["sweep", str(tiny), *settings, *rates, "--out", "sweep"], standalone_mode=False)
    assert [path.parent.name for path in tmp_path.glob("sweep/*/estimate.json")] == ["rate-0.05,seed-0"]
    cli(["figure", "figure-2", "sweep", "--out", "drawn"], standalone_mode=False)
    drawing = (tmp_path / "drawn/figure-2.svg").read_text(encoding="utf-8")
    assert "1/L" in drawing
    assert ">2/L<" in drawing


def test_a_cluster_that_is_not_there(tiny: Path, call: Call) -> None:
    _, stderr = call("sweep", tiny, "--address", "auto", code=2)
    assert "--engine ray" in stderr
    pytest.importorskip("ray")
    _, stderr = call("sweep", tiny, "--engine", "ray", "--address", "auto", code=2)
    assert "ray start" in stderr
    assert "Traceback" not in stderr
