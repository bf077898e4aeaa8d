"""The command line: output, exit codes, and signals, which are sent to separate processes."""

import io
import json
import os
import platform
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click
import pytest
import torch

import excite
from excite.cli import cli, main
from excite.cli.options import read_run
from excite.files import write_json
from tests.command_line import call, call_process
from tests.faults.processes import Excite

SHORT = [
    *("--set", "data.train_examples=320", "--set", "data.test_examples=60", "--set", "training.epochs=3"),
    *("--set", "lipschitz.steps=20", "--set", "lipschitz.limit=1.0", "--set", "record.noise_examples=64"),
]
PGD = 'attacks={"PGD-5"={kind="pgd",eps=0.1,step=0.05,steps=5}}'
SMALL = ["mnist-sample", *SHORT, "--set", "training.batch_size=32", "--set", PGD, "--force"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A small run of the whole procedure, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, *call("run", *SMALL, cwd=folder)


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else (command,)


@pytest.mark.parametrize("command", list(commands(cli)), ids=lambda command: str(command.name))
def test_every_command_explains_itself_with_an_example(command: click.Command) -> None:
    assert command.help
    assert "Example: excite" in (command.epilog or "")


def test_version(tmp_path: Path) -> None:
    printed, _ = call_process("--version", cwd=tmp_path)
    assert printed.startswith(
        f"excite {excite.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    assert "devices: cpu" in printed


@pytest.mark.parametrize("rank", ["1", ""])
def test_rank_without_torchrun_is_ignored(rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "")
    assert "cifar10" in call("data", "list", cwd=tmp_path)[0]


def test_broken_pipe_exits_with_141() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "excite", "data", "list"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_what_an_encoding_lacks_is_escaped(finished: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "cp1252"))
    with pytest.raises(SystemExit) as end:
        main(["report", str(finished[0] / "runs/mnist-sample")])
    text = written.getvalue().decode("cp1252")
    assert not end.value.code
    assert r"rate \u03b7" in text
    assert "---" in text
    assert re.search(r" -\d+\.\d+", text)  # a minus sign


def test_a_closed_stdout_is_no_error(finished: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as end:
        main(["report", str(finished[0] / "runs/mnist-sample")])
    assert not end.value.code


def test_no_file_gets_the_number_of_a_closed_stdout() -> None:
    imports = "import os, sys; os.close(1)\nfrom excite.cli import main\n"
    code = f"{imports}try: main(['-h'])\nexcept SystemExit: sys.exit(os.dup(0))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode > 2


def test_run_prints_a_table_and_says_where_the_report_is(finished: tuple[Path, str, str]) -> None:
    folder, stdout, stderr = finished
    for text in ("baseline", "PoE-motivated, 1/L", "2/L", "L ≤ ", "1/L", "rate η¹"):
        assert text in stdout
    assert "Report: runs/mnist-sample/report.html" in stdout
    assert "training at rate" in stderr
    assert "training at rate" not in stdout
    assert "\x1b" not in stdout + stderr
    page = (folder / "runs/mnist-sample/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


def test_a_finished_run_is_shown_again_without_work(finished: tuple[Path, str, str]) -> None:
    folder, stdout, _ = finished
    again, stderr = call("run", *SMALL, cwd=folder)
    assert again == stdout
    assert stderr == ""
    assert call("report", "runs/mnist-sample", cwd=folder)[0] == stdout


def test_json_output_is_consistent(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    results = json.loads(call("run", *SMALL, "--json", cwd=folder)[0])
    assert [arm["name"] for arm in results["arms"]] == ["baseline", "poe", "largest"]
    assert results["arms"][1]["rate"] == pytest.approx(1 / results["estimate"]["constant"])
    assert results["arms"][2]["rate"] == pytest.approx(2 / results["estimate"]["constant"])
    estimate = json.loads(call("estimate", "runs/mnist-sample", "--json", cwd=folder)[0])
    assert estimate == results["estimate"]
    evaluation = json.loads(call("attack", "runs/mnist-sample", "--arm", "poe", "--json", cwd=folder)[0])
    assert evaluation == results["arms"][1]["evaluation"]


def test_attack_says_where_the_result_is_saved(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    weights = next((folder / "runs/mnist-sample/baseline").glob("weights-*"))
    model = ["--model", "lenet5", "--weights", str(weights), "--data", "mnist-sample"]
    attack = ["--with", "pgd", "--eps", "0.1", "--steps", "2", "--examples", "20"]
    told, _ = call("attack", *model, *attack, cwd=folder)
    file = json.loads(call("attack", *model, *attack, "--json", cwd=folder)[0])["file"]
    assert Path(file).parent == weights.parent
    assert file in told


def test_two_models_are_compared_on_the_same_images(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    run, attack = "runs/mnist-sample", ["--with", "pgd", "--eps", "0.1", "--steps", "2", "--examples", "20"]
    stored = json.loads(call("attack", run, f"{run}/poe", "--json", cwd=folder)[0])
    compared = json.loads(call("attack", f"{run}/baseline", f"{run}/poe", *attack, "--json", cwd=folder)[0])
    for result in (stored, compared):
        first, second = result["evaluations"].values()
        assert first["examples"] == second["examples"]
        clean, attacked = result["differences"][:2]
        assert clean["difference"] == pytest.approx(second["clean"]["accuracy"] - first["clean"]["accuracy"])
        assert attacked["interval"][0] <= attacked["difference"] <= attacked["interval"][1]
    text, _ = call("attack", f"{run}/baseline", f"{run}/poe", *attack, cwd=folder)
    assert f"{run}/poe\n" in text
    assert "McNemar" in text
    weights = [str(next((folder / run / arm).glob("weights-*"))) for arm in ("baseline", "poe")]
    own, _ = call("attack", "--model", "lenet5", "--data", "mnist-sample", *weights, *attack, cwd=folder)
    assert own.count("McNemar") == text.count("McNemar")


def test_every_estimate_side_by_side(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    table, _ = call("estimate", "runs/mnist-sample", "--compare", "--train", cwd=folder)
    assert [line.split()[0] for line in table.splitlines()[2:6]] == ["edge", "paper", "epochs", "local"]
    assert "curvature: " in table


def test_certify_prints_assumption_2(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    table, _ = call("certify", "runs/mnist-sample", "--arm", "poe", cwd=folder)
    assert "Assumption 2" in table
    facts = json.loads(call("certify", "runs/mnist-sample", "--arm", "poe", "--json", cwd=folder)[0])
    assert len(facts["epochs"]) == 1  # three epochs: the last is θ*, and the step to it is a free success
    assert facts["epochs"][0]["rate_times_L"] == pytest.approx(1)
    assert facts["at_most_1/L"] == 1


def test_batch_size_is_predicted_from_one_training(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    text, _ = call("batch-size", "runs/mnist-sample", "--arm", "poe", cwd=folder)
    predicted = json.loads(call("batch-size", "runs/mnist-sample", "--arm", "poe", "--json", cwd=folder)[0])
    certified = json.loads(call("certify", "runs/mnist-sample", "--arm", "poe", "--json", cwd=folder)[0])
    assert text.startswith("In expectation, a step of SGD with batches of 32 is acute at")
    assert text.strip() in call("certify", "runs/mnist-sample", "--arm", "poe", cwd=folder)[0].replace("\n", " ")
    assert predicted == certified["in_expectation"]
    assert len(predicted["batch_sizes"]) == 1
    stored = json.loads((folder / "runs/mnist-sample/poe/certificate.json").read_text(encoding="utf-8"))
    assert stored["acute_in_expectation"] == sum(predicted["acute"])
    assert stored["batch_size_for_half"] == predicted["enough_at_half"]
    page = (folder / "runs/mnist-sample/report.html").read_text(encoding="utf-8")
    assert f"<td>{stored['acute']}</td><td>{stored['acute_in_expectation']}</td>" in page


def test_a_predicted_batch_size_beyond_the_images_of_an_epoch_is_said(tmp_path: Path) -> None:
    """The arm 2/L of the batch of 2,000 needs 570 at all moments; here an epoch is said to have 500 images."""
    kept = Path(__file__).parents[1] / "results/batch-size-in-expectation/figure-4-small/batch_size-2000,seed-0"
    shutil.copytree(kept, tmp_path / "run")
    command = ("batch-size", "run", "--arm", "largest")
    assert "of 570 at all" in (text := call(*command, cwd=tmp_path)[0])
    assert "An epoch has only" not in text
    values = read_run(tmp_path / "run").experiment.to_json()
    values["data"]["train_examples"] = 500
    write_json(tmp_path / "run/experiment.json", values)
    assert "An epoch has only 500 images" in call(*command, cwd=tmp_path)[0]


def test_batch_size_tries_each(tmp_path: Path) -> None:
    sizes = ("--try", "32", "64", "--threshold", "0.01")
    choice = json.loads(call("batch-size", "mnist-sample", *sizes, *SHORT, "--json", cwd=tmp_path)[0])
    assert set(choice["fractions"]) == set(choice["accuracies"]) == {"32", "64"}
    assert choice["chosen"] in (32, 64)


def test_refuses_another_experiment_in_the_same_folder(finished: tuple[Path, str, str]) -> None:
    folder, _, _ = finished
    _, stderr = call("run", *SMALL, "--set", "training.epochs=4", cwd=folder, code=2)
    assert "training.epochs: 3 → 4" in stderr
    assert "--out" in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_training_is_saved(tmp_path: Path, number: signal.Signals, code: int) -> None:
    endless = ("--set", "training.epochs=1000", "--set", "data.train_examples=320")
    process = Excite("train", *endless, "--out", tmp_path / "run")
    while process.alive and not (tmp_path / "run/baseline/metrics.jsonl").exists():
        time.sleep(0.05)
    process.send(number)
    ended, said = process.end()
    assert ended == code
    assert "same command" in said
    assert json.loads((tmp_path / "run/baseline/checkpoint.json").read_text())["position"]["epoch"] >= 1


A_SIGNAL_WHILE_AN_OBJECT_GOES = """
import os, sys, time, weakref
from excite.cli import cli, main
from excite.cli.options import read_run
from excite.files import write_json

class Thing: pass

@cli.command()
def wait():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), int(sys.argv[1])))
    del thing
    time.sleep(60)

main(["wait"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_during_finalization_is_not_lost(number: signal.Signals, code: int) -> None:
    script = [sys.executable, "-c", A_SIGNAL_WHILE_AN_OBJECT_GOES, str(int(number))]
    process = subprocess.run(script, capture_output=True, text=True, check=False)
    assert process.returncode == code
    assert process.stderr.count("same command") == 1
    assert "Traceback" not in process.stderr


def test_diverged_training_exits_with_3(tmp_path: Path) -> None:
    wild = [*SMALL, "--set", "training.schedule.rate=1000.0", "--out", "run"]
    for _ in range(2):  # the second time it is read from the folder
        _, stderr = call("train", *wild, cwd=tmp_path, code=3)
        assert "diverged" in stderr
        assert "Traceback" not in stderr


def test_wrong_input_exits_with_2(tmp_path: Path) -> None:
    """As a process; every other wrong input is in test_bad_input.py."""
    stdout, stderr = call_process("run", "mnits-sample", cwd=tmp_path, code=2)
    assert "mnist-sample" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not (tmp_path / "runs").exists()


def test_a_damaged_checkpoint_exits_with_5(tmp_path: Path) -> None:
    call("train", *SMALL, "--out", "run", cwd=tmp_path)
    (weights,) = (tmp_path / "run/baseline").glob("weights-*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    _, stderr = call("attack", "run", cwd=tmp_path, code=5)
    assert "SHA-256" in stderr


def test_lists(tmp_path: Path) -> None:
    names = json.loads(call("list", "--json", cwd=tmp_path)[0])
    assert "mnist-sample" in names["experiments"]
    assert "lenet5" in names["models"]
    statuses = json.loads(call("data", "list", "--json", cwd=tmp_path)[0])
    assert {"mnist-sample", "mnist", "fashion-mnist", "cifar10", "cifar100"} <= {status["name"] for status in statuses}
    assert "mnist-sample" in call("data", "verify", "mnist-sample", cwd=tmp_path)[0]


@pytest.mark.parametrize("arguments", [("report", "no\x1b[31mwhere"), ("\x1b]0;title\x07",)])
def test_escapes_control_characters_on_a_terminal(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Only a terminal would be: elsewhere click takes the codes out."""
    said = b""

    def listen(terminal: int) -> bytes:
        nonlocal said
        said += (heard := os.read(terminal, 4096))
        return heard

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        pty.spawn([sys.executable, "-m", "excite", *arguments], listen)
    assert b"\\x1b" in said
    assert b"\x1b" not in said


def test_a_log_file_has_messages_progress_and_errors_with_times(tmp_path: Path, tiny_experiment: str) -> None:
    (tmp_path / "tiny.toml").write_text(tiny_experiment, encoding="utf-8")
    command = ["run", "tiny.toml", "--arms", "baseline", "--log-file", "logs/tiny.log", "-q"]
    assert call(*command, cwd=tmp_path)[1] == ""
    assert call(*command, "--set", "training.epochs=3", cwd=tmp_path, code=2)[1].startswith("error: ")
    lines = (tmp_path / "logs" / "tiny.log").read_text(encoding="utf-8").splitlines()
    times, messages = zip(*((line[:23], line[24:]) for line in lines), strict=True)
    assert [*times] == sorted(times)
    datetime.strptime(times[0], "%Y-%m-%d %H:%M:%S,%f")
    assert any("baseline: training" in message for message in messages)
    assert messages[-1].startswith("error: ")
    assert "training.epochs" in messages[-1]
