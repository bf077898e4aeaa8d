"""Two processes of this machine train one model, for real."""

import json
import os
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from torch import Tensor

from excite.cli import cli
from excite.runs.folder import RunFolder
from excite.runs.records import read_stages
from excite.trace import Trace
from excite.training import read_metrics
from excite.training.distributed import ALONE
from tests.faults.processes import FORKED

WORKER = Path(__file__).with_name("distributed_worker.py")
# Without these two, gloo may fail to connect again after a restart on one machine: docs/distributed.md.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
LEFT = "threads that may abort this process"  # the worker checks it at its end
SHORT = ("--set", "training.epochs=2", "--set", "training.steps=2", "--set", "record.curvature_every=0")


def torchrun(*arguments: object, restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen(
        [*command, f"--max-restarts={restarts}", *map(str, arguments)],
        env=os.environ | LOOPBACK | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def rank(number: int, port: int, arguments: list[str], folder: Path) -> None:
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with (folder / name).open("a", encoding="utf-8") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ |= LOOPBACK | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    sys.argv = [str(WORKER), *arguments]
    runpy.run_path(str(WORKER), run_name="__main__")


def two_processes(folder: Path, *arguments: object) -> tuple[str, str]:
    """What the two print, with the environment that torchrun gives them; they start in no time, unlike it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [*map(str, arguments)]
    processes = [FORKED.Process(target=rank, args=(number, port, given, folder)) for number in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    out, err = ((folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
    assert [process.exitcode for process in processes] == [0, 0], err
    return out, err


def saved(folder: Path) -> dict[str, Tensor]:
    """Everything in a folder's checkpoint: weights, optimizer, random states, the recorder's sums."""
    (weights,) = folder.glob("weights-*.safetensors")
    return safetensors.torch.load_file(weights)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def worker() -> dict[str, Any]:
    """The worker's functions, to be called in this process alone."""
    return runpy.run_path(str(WORKER))


@pytest.mark.slow
def test_gradients_equal_those_of_one_process(tmp_path: Path, worker: dict[str, Callable[..., None]]) -> None:
    finished(torchrun(WORKER, "gradients", tmp_path / "two"))
    worker["gradients"](tmp_path / "one", ALONE)
    one, two = (safetensors.torch.load_file(tmp_path / folder / "gradients.safetensors") for folder in ("one", "two"))
    assert len(one) == 6
    for step, gradient in one.items():
        assert (two[step] - gradient).norm() <= 1e-6 * gradient.norm(), step


def test_the_command_line_trains_under_torchrun_as_without(tmp_path: Path) -> None:
    arguments = ("train", "mnist-sample", *SHORT, "--json", "--out")
    out, err = two_processes(tmp_path, "excite", *arguments, tmp_path / "two")
    assert json.loads(out)["name"] == "baseline"  # printed once
    assert err.count("training at rate 0.1, done") == 1
    assert CliRunner().invoke(cli, [*arguments, str(tmp_path / "one")]).exit_code == 0
    one, two = saved(tmp_path / "one" / "baseline"), saved(tmp_path / "two" / "baseline")
    for name in one.keys() - {"random.cpu"}:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)
    assert [line.epoch for line in read_metrics(tmp_path / "two" / "baseline")] == [1, 2]
    traces = [Trace.load(tmp_path / folder / "baseline" / "trace.safetensors") for folder in ("one", "two")]
    np.testing.assert_allclose(traces[1].slopes, traces[0].slopes, rtol=1e-3)


def test_a_whole_run_goes_through_its_stages_once(tmp_path: Path) -> None:
    """Trained together, attacked and reported by the first process; the arm at 1/L needs an estimate on the way."""
    few = ("--set", "lipschitz.steps=10", "--set", "lipschitz.limit=1.0", "--set", "data.test_examples=20", "--force")
    arguments = ("run", "mnist-sample", *SHORT, *few, "--arms", "baseline,poe", "--json", "--out", tmp_path / "run")
    out, err = two_processes(tmp_path, "excite", *arguments)
    assert json.loads(out)["report"].endswith("report.html")  # printed once
    assert err.count("training at rate 0.1, done") == 1
    run = RunFolder(tmp_path / "run")
    assert [arm.evaluation is not None for arm in run.arms] == [True, True]
    assert (run.path / "report.html").exists()
    stages = [stage.file for stage in read_stages(run.path)]
    assert {"poe/outcome.json", "poe/evaluation.json", "illustration.json"} <= {*stages}
    assert len(stages) == len(set(stages))


@pytest.mark.slow
def test_the_trace_is_that_of_one_process(tmp_path: Path, worker: dict[str, Callable[..., None]]) -> None:
    finished(torchrun(WORKER, "recorded", tmp_path / "two"))
    worker["recorded"](tmp_path / "one", ALONE)
    one, two = (Trace.load(tmp_path / folder / "trace.safetensors") for folder in ("one", "two"))
    assert (len(two), len(two.slopes), len(two.curvatures)) == (3, 6, 3)
    for name in {field.name for field in fields(Trace)} - {"facts"}:
        np.testing.assert_allclose(getattr(two, name), getattr(one, name), rtol=1e-3, err_msg=name)
    assert two.facts == one.facts
    assert [line.extra["rank"] for line in read_metrics(tmp_path / "two")] == [0, 0, 0]


@pytest.mark.slow
def test_a_run_that_one_process_is_asked_to_stop_ends_bit_identical(tmp_path: Path) -> None:
    finished(torchrun(WORKER, "random", tmp_path / "whole", 0))
    stopped = torchrun(WORKER, "random", tmp_path / "stopped", 8)
    errors = stopped.communicate(timeout=300)[1]
    assert re.search(r"InterruptedRunError: .*after 1 of", errors)
    assert LEFT not in errors
    assert (tmp_path / "stopped" / "weights-0001-000003.safetensors").exists()
    finished(torchrun(WORKER, "random", tmp_path / "stopped", 0))
    whole = saved(tmp_path / "whole")
    assert same(whole, saved(tmp_path / "stopped"))
    assert not torch.equal(whole["random.cpu"], whole["rank1.random.cpu"])
    traces = [Trace.load(tmp_path / folder / "trace.safetensors") for folder in ("whole", "stopped")]
    assert np.array_equal(traces[0].slopes, traces[1].slopes)


def test_all_processes_find_the_rate_that_one_process_finds(
    tmp_path: Path, worker: dict[str, Callable[..., None]]
) -> None:
    two_processes(tmp_path, "online", tmp_path / "two")
    worker["online"](tmp_path / "one", ALONE, broken_step=3)
    (alone,), (first, last) = (json.loads((tmp_path / name / "ladders.json").read_text()) for name in ("one", "two"))
    assert first == last
    assert len(first["good"]) > 3
    assert len(first["breaks"]) > 1  # the first of them before anything was kept
    for name in ("rate", "good", "breaks", "lost"):
        assert first[name] == alone[name]
    one, two = saved(tmp_path / "one"), saved(tmp_path / "two")
    for name in one.keys() - {"random.cpu"}:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [20, 33])
def test_a_rate_that_is_found_on_the_way_is_found_again_after_a_stop(tmp_path: Path, stop_at: int) -> None:
    finished(torchrun(WORKER, "random online", tmp_path / "whole", 0))
    errors = torchrun(WORKER, "random online", tmp_path / "stopped", stop_at).communicate(timeout=300)[1]
    assert "InterruptedRunError" in errors
    stopped = saved(tmp_path / "stopped")
    buffer = "extra.online.model.2.running_mean"
    assert not torch.equal(stopped[buffer], stopped[f"rank1.{buffer}"])
    finished(torchrun(WORKER, "random online", tmp_path / "stopped", 0))
    assert same(saved(tmp_path / "whole"), saved(tmp_path / "stopped"))
    whole, resumed = (json.loads((tmp_path / name / "ladders.json").read_text()) for name in ("whole", "stopped"))
    assert whole == resumed
    assert whole[0] == whole[1]


@pytest.mark.slow
def test_all_processes_diverge_together(tmp_path: Path) -> None:
    process = torchrun(WORKER, "diverging", tmp_path)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode != 0
    for rank in (0, 1):
        assert f"[rank{rank}]: excite.errors.DivergedError: Training diverged in epoch 1" in errors
    assert LEFT not in errors


@pytest.mark.slow
@pytest.mark.parametrize("kills", [10])
def test_killed_processes_are_started_again_and_the_run_ends_the_same(tmp_path: Path, kills: int) -> None:
    rng = random.Random(0)  # noqa: S311
    arguments = ("-m", "excite", "train", "mnist-sample", "--set", "training.epochs=24", "--out")
    finished(torchrun(*arguments, tmp_path / "whole"))
    process = torchrun(*arguments, tmp_path / "killed", restarts=kills)
    for _ in range(kills):
        before = epochs_done(tmp_path / "killed")
        wait_for(partial(further_than, before, tmp_path / "killed"), process)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(_process_of(process.pid, rank=rng.randrange(2)), signal.SIGKILL)
    assert "exitcode: -9" in finished(process)[1]
    assert same(saved(tmp_path / "whole" / "baseline"), saved(tmp_path / "killed" / "baseline"))
    losses = [[line.loss for line in read_metrics(tmp_path / folder / "baseline")] for folder in ("whole", "killed")]
    assert losses[0] == losses[1]
    print(f"recovered from {kills} of {kills} killed ranks, with identical weights")


def epochs_done(run: Path) -> int:
    """By the checkpoint, which is there after the epoch's line: a killed run goes back to it."""
    facts = run / "baseline" / "checkpoint.json"
    return int(json.loads(facts.read_text())["position"]["epoch"]) if facts.exists() else 0


def further_than(epochs: int, run: Path) -> bool:
    return epochs_done(run) > epochs


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_the_first_process_finds_the_rate_for_all(tmp_path: Path) -> None:
    few = ("--set", "lipschitz.steps=30", "--set", "lipschitz.limit=200", "--force")
    arguments = ("mnist-sample", "--arm", "poe", *SHORT, *few, "--out", tmp_path)
    out, _ = finished(torchrun("-m", "excite", "train", *arguments))
    rate = json.loads((tmp_path / "poe" / "outcome.json").read_text())["rate"]
    constant = json.loads((tmp_path / "estimate.json").read_text())["estimate"]["constant"]
    assert rate == pytest.approx(1 / constant)
    assert out.count("Checkpoint") == 1


@pytest.mark.slow
def test_other_commands_say_what_torchrun_is_for() -> None:
    process = torchrun("-m", "excite", "list")
    assert "`excite train` run under torchrun" in process.communicate(timeout=300)[1]
    assert process.returncode != 0


def _process_of(agent: int, *, rank: int) -> int:
    """The process that torchrun gave this rank."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (found,) = (pid for pid in children if f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text())
    return int(found)
