"""The best weights of a training: chosen on images that nobody trained on, the same ones after a stop."""

import os
import signal
from pathlib import Path

import pytest
import torch

from excite.console import Console
from excite.errors import InputError, InterruptedRunError
from excite.evaluation import evaluate
from excite.runs import load
from excite.runs.arms import arm_named
from excite.runs.assemble import Parts, assemble
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.runs.stages.best import keep_best
from excite.runs.verify import verify

KEEPING = ["record.best_every=1", "record.held_out_examples=40", "training.epochs=4"]


def rows(parts: Parts) -> tuple[set[bytes], set[bytes]]:
    assert parts.held_out is not None
    return tuple({image.numpy().tobytes() for image in split.images} for split in (parts.train, parts.held_out))  # type: ignore[return-value]


@pytest.mark.parametrize("examples", [60, 100_000])
def test_held_out_images_are_not_trained_on(tiny: Path, examples: int) -> None:
    everything = assemble(load(str(tiny), overrides=["data.train_examples=60"]))
    asked = "" if examples > 1000 else f"data.train_examples={examples}"
    parts = assemble(load(str(tiny), overrides=[*KEEPING, *filter(None, [asked])]))
    trained_on, held_out = rows(parts)
    assert len(held_out) == 40
    assert not trained_on & held_out
    if asked:  # there are enough others: the ones trained on stay the same
        assert torch.equal(parts.train.images, everything.train.images)


def test_the_best_epoch_is_kept_and_attacked(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, load(str(tiny), overrides=KEEPING), console=Console())
    run.finish("baseline")
    arm = RunFolder(tmp_path).arm("baseline")
    measured = [epoch.extra["held_out_accuracy"] for epoch in arm.epochs]
    assert arm.best_epoch == 1 + measured.index(max(measured))  # the first of equals
    model = arm.best.load_into(run.parts.new_model())
    assert run.parts.held_out is not None
    x, y = run.parts.held_out.floats(), run.parts.held_out.labels
    assert evaluate(model, x, y, run.parts.attacks, checks=False).worst.value == max(measured)
    assert arm.best.evaluation is not None
    assert len(arm.best.evaluation.correct) == len(run.parts.test)
    assert verify(tmp_path).problems == ()
    next(arm.best.path.glob("weights-*")).write_bytes(b"something else")
    assert verify(tmp_path).problems


def test_looking_for_the_best_does_not_change_the_training(tiny: Path, tmp_path: Path) -> None:
    with_best = load(str(tiny), overrides=["data.train_examples=60", *KEEPING])
    without = load(str(tiny), overrides=["data.train_examples=60", "training.epochs=4"])
    weights = []
    for name, experiment in (("with", with_best), ("without", without)):
        run = Run(tmp_path / name, experiment, console=Console())
        run.train("baseline")
        weights.append(run.files.arm("baseline").load_into(run.parts.new_model()).state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_stopped_training_keeps_the_same_best(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert next(one.best.path.glob("weights-*")).read_bytes() == next(other.best.path.glob("weights-*")).read_bytes()


def test_bad_settings(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves none"):
        assemble(load(str(tiny), overrides=["record.best_every=1", "record.held_out_examples=100000"]))
    with pytest.raises(InputError, match="best_every needs an attack"):
        Run(tmp_path / "run", load(str(tiny), overrides=[*KEEPING, "attacks={}"]), console=Console())


def test_a_control_trains_in_its_own_batches(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, load(str(tiny)), console=Console())
    own = run.experiment.training.batch_size
    name = arm_named(f"batch:{own // 2}").name
    run.train("baseline")
    run.train(name)
    baseline, control = run.files.arm("baseline"), run.files.arm(name)
    assert (baseline.batch_size, control.batch_size) == (own, own // 2)
    assert control.rate == baseline.rate
    assert 0 <= (control.train_accuracy or -1) <= 1
