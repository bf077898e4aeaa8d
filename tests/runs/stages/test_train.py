"""What an arm's training leaves, and the best of its weights."""

import json
import os
import signal
import sys
from functools import reduce
from pathlib import Path

import pytest
import torch

from excite.console import Console
from excite.data import load as load_data
from excite.errors import InputError, InterruptedRunError
from excite.evaluation import evaluate
from excite.runs import load
from excite.runs.arms import arm_named
from excite.runs.assemble import Parts, assemble
from excite.runs.folder import FURTHER, RunFolder
from excite.runs.procedure import Run
from excite.runs.stages.train import epoch_accuracies, keep_best
from excite.runs.verify import verify


def test_the_first_attack_on_the_first_test_images(tiny: Path) -> None:
    parts = assemble(load(str(tiny), overrides=["record.attacked_examples=25"]))
    model = parts.new_model()
    measured = epoch_accuracies(parts, model)
    x, y = parts.test.floats(), parts.test.labels
    assert measured == {
        "test_accuracy": evaluate(model, x, y, {}).clean.value,
        "robust_accuracy": evaluate(model, x[:25], y[:25], parts.attacks).robust["PGD-3"].value,
        "attacked_clean_accuracy": evaluate(model, x[:25], y[:25], {}).clean.value,
    }


def test_measuring_an_epoch_shows_no_bar_on_a_terminal(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = assemble(load(str(tiny), overrides=["record.attacked_examples=5"]))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    epoch_accuracies(parts, parts.new_model())
    assert not capsys.readouterr().err


def test_recording_does_not_disturb_the_training(tiny: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "without", tmp_path / "with"]
    for folder, examples in zip(folders, (0, 40), strict=True):
        experiment = load(str(tiny), overrides=[f"record.attacked_examples={examples}"])
        Run(folder, experiment, console=Console()).train("baseline")
    without, with_attack = (
        [json.loads(line) for line in (folder / "baseline/metrics.jsonl").read_text().splitlines()]
        for folder in folders
    )
    assert [line["loss"] for line in without] == [line["loss"] for line in with_attack]
    assert [set(line["extra"]) for line in without] == [{"test_accuracy"}] * 2
    assert [set(line["extra"]) for line in with_attack] == [
        {"test_accuracy", "robust_accuracy", "attacked_clean_accuracy"}
    ] * 2
    assert without[-1]["extra"]["test_accuracy"] == with_attack[-1]["extra"]["test_accuracy"]


def test_random_numbers_and_modes_are_put_back(tiny: Path) -> None:
    parts = assemble(load(str(tiny), overrides=["record.attacked_examples=40"]))
    model = parts.new_model().train()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    epoch_accuracies(parts, model)
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_attack_is_needed(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=["record.attacked_examples=5", "attacks={}"])
    with pytest.raises(InputError, match="attacked_examples"):
        Run(tmp_path / "run", experiment, console=Console())
    assert not (tmp_path / "run").exists()


SMALL = ["data.train_examples=60", "data.test_examples=40", "record.slopes_per_epoch=0", "training.epochs=3"]
KEEPING = [*SMALL, "record.best_every=1", "record.held_out_examples=40", "record.average=0.3"]


def rows(parts: Parts) -> tuple[set[bytes], set[bytes]]:
    assert parts.held_out is not None
    return tuple({image.numpy().tobytes() for image in split.images} for split in (parts.train, parts.held_out))  # type: ignore[return-value]


def test_held_out_images_are_not_trained_on(tiny: Path) -> None:
    without, with_best = (assemble(load(str(tiny), overrides=changes)) for changes in (SMALL, KEEPING))
    trained_on, held_out = rows(with_best)
    assert len(held_out) == 40
    assert not trained_on & held_out
    assert torch.equal(with_best.train.images, without.train.images)  # there were enough others


def test_of_all_images_some_are_taken_out(tiny: Path) -> None:
    everything = load_data("mnist-sample").train
    parts = assemble(load(str(tiny), overrides=[*KEEPING, f"data.train_examples={len(everything)}"]))
    trained_on, held_out = rows(parts)
    assert (len(parts.train), not trained_on & held_out) == (len(everything) - 40, True)


def test_the_best_and_the_averaged_weights_are_kept_and_attacked(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, load(str(tiny), overrides=KEEPING), console=Console())
    run.finish("baseline")
    arm = RunFolder(tmp_path).arm("baseline")
    measured = [epoch.extra["held_out_accuracy"] for epoch in arm.epochs]
    assert arm.best_epoch == 1 + measured.index(max(measured))  # the first of equals
    model = arm.of("best").load_into(run.parts.new_model())
    assert run.parts.held_out is not None
    x, y = run.parts.held_out.floats(), run.parts.held_out.labels
    assert evaluate(model, x, y, run.parts.attacks, checks=False).worst.value == max(measured)
    for weights in FURTHER:
        evaluation = arm.of(weights).evaluation
        assert evaluation is not None
        assert len(evaluation.correct) == len(run.parts.test)
    assert verify(tmp_path).problems == ()
    next(arm.of("best").path.glob("weights-*")).write_bytes(b"something else")
    assert verify(tmp_path).problems


def test_keeping_further_weights_does_not_change_the_training(tiny: Path, tmp_path: Path) -> None:
    with_best = load(str(tiny), overrides=KEEPING)
    without = load(str(tiny), overrides=SMALL)
    weights = []
    for name, experiment in (("with", with_best), ("without", without)):
        run = Run(tmp_path / name, experiment, console=Console())
        run.train("baseline")
        weights.append(run.files.arm("baseline").load_into(run.parts.new_model()).state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_stopped_training_keeps_the_same_weights(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load(str(tiny), overrides=KEEPING)
    Run(tmp_path / "whole", experiment, console=Console()).train("baseline")
    looks = iter(range(10))

    def interrupt_once(*arguments: object) -> dict[str, float]:
        found = keep_best(*arguments)  # type: ignore[arg-type]
        if next(looks) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr("excite.runs.stages.train.keep_best", interrupt_once)
    with pytest.raises(InterruptedRunError):
        Run(tmp_path / "stopped", experiment, console=Console()).train("baseline")
    Run(tmp_path / "stopped", experiment, console=Console()).train("baseline")
    one, other = (RunFolder(tmp_path / name).arm("baseline") for name in ("whole", "stopped"))
    assert one.best_epoch == other.best_epoch
    assert [epoch.extra for epoch in one.epochs] == [epoch.extra for epoch in other.epochs]
    for weights in FURTHER:
        kept, kept_when_stopped = (next(arm.of(weights).path.glob("weights-*")) for arm in (one, other))
        assert kept.read_bytes() == kept_when_stopped.read_bytes()


def test_the_average_is_exponential(tiny: Path, tmp_path: Path) -> None:
    changes = [*SMALL, "training.steps=1", "training.epochs=4", "record.average=0.5"]  # 4 steps: a mean over 2 of them
    run, after_steps = Run(tmp_path, load(str(tiny), overrides=changes), console=Console()), []
    run.train("baseline")
    arm = run.files.arm("baseline")
    for epochs in range(1, 5):
        shorter = load(str(tiny), overrides=[*changes, f"training.epochs={epochs}", "record.average=0"])
        first = Run(tmp_path / str(epochs), shorter, console=Console())
        first.train("baseline")
        after_steps.append(first.files.arm("baseline").load_into(run.parts.new_model()).state_dict())
    averaged = arm.of("averaged").load_into(run.parts.new_model()).state_dict()
    for name, value in averaged.items():
        one, *others = (weights[name] for weights in after_steps)
        assert torch.allclose(value, reduce(lambda mean, weights: (mean + weights) / 2, others, one))


def test_bad_settings(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="held_out_examples"):
        assemble(load(str(tiny), overrides=["record.best_every=1", "record.held_out_examples=100000"]))
    with pytest.raises(InputError, match="best_every"):
        Run(tmp_path / "run", load(str(tiny), overrides=[*KEEPING, "attacks={}"]), console=Console())
    assert not (tmp_path / "run").exists()


def test_a_control_trains_in_its_own_batches(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, load(str(tiny), overrides=SMALL), console=Console())
    own = run.experiment.training.batch_size
    name = arm_named(f"batch:{own // 2}").name
    run.train("baseline")
    run.train(name)
    baseline, control = run.files.arm("baseline"), run.files.arm(name)
    assert (baseline.outcome.batch_size, control.outcome.batch_size) == (own, own // 2)
    assert control.rate == baseline.rate
    assert 0 <= (control.outcome.train_accuracy or -1) <= 1


def test_a_batch_of_more_images_than_there_are_is_all_of_them(tiny: Path, tmp_path: Path) -> None:
    changes = ["data.train_examples=20", "data.test_examples=10", 'lipschitz={method="stated",constant=5.0}']
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console())  # in batches of 32, at 0.05
    run.train("baseline")
    run.train("batch")
    sizes = [run.files.arm(name).outcome.batch_size for name in ("baseline", "batch")]
    assert sizes == [20, 5]  # 0.05 / 5 = 0.2 / 20
    assert not verify(run.folder).problems


def test_a_control_in_larger_batches_than_can_be_had_is_refused(tiny: Path, tmp_path: Path) -> None:
    changes = ["data.train_examples=20", "data.test_examples=10", 'lipschitz={method="stated",constant=40.0}']
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console())
    with pytest.raises(InputError, match="batch:20"):
        run.all(["baseline", "batch:5000"])
    assert not run.files.arms  # before anything trained
    with pytest.raises(InputError, match="batch:20"):
        run.train("batch")  # 0.05 / 40 = 0.025 / 20
