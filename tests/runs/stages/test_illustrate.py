"""The certificate of a trained arm, and the attacked images for the page."""

import base64
import dataclasses
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from excite.console import Console
from excite.data import load as load_data
from excite.evaluation import Evaluation
from excite.excitation import certify
from excite.runs import load
from excite.runs.assemble import assemble
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.runs.records import Illustration
from excite.runs.stages.attack import attacked_examples, choose, png


def test_every_arm_that_was_recorded_keeps_its_certificate(tiny: Path, tmp_path: Path) -> None:
    changes = ["training.epochs=4", "data.train_examples=64", 'lipschitz={method="stated",constant=8.0}']
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console())
    run.train("poe")
    arm = run.files.arm("poe")
    trace, stored = arm.trace(), arm.certified
    assert trace is not None
    assert stored is not None
    path = certify(trace, 8.0)
    assert path.smoothness
    assert (stored.steps, stored.certified) == (2, path.certified.sum())
    assert stored.acute == path.angles.holds.sum()
    assert (stored.slopes, stored.largest_slope) == (path.smoothness.slopes, path.smoothness.largest)
    assert (stored.slowest is None) == (path.excitation is None)
    if path.excitation:
        assert (stored.slowest, stored.fastest) == (path.excitation.smallest, path.excitation.largest)
    arm.certificate_file.unlink()
    run.train("poe")  # a folder of before there were any gets it without another training
    assert run.files.arm("poe").certified == stored


def test_two_epochs_are_too_few(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", load(str(tiny), overrides=["data.train_examples=64"]), console=Console())
    run.train("baseline")
    assert run.files.arm("baseline").certified is None


def pixels(uri: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    header, _, encoded = uri.partition(",")
    assert header == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


def attacked(run: RunFolder, count: int = 4) -> Illustration:
    return attacked_examples(assemble(run.experiment, device="cpu"), run, count=count)


def test_png_is_lossless() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    for shape in ((1, 16, 16), (3, 16, 16)):
        image = levels.view(1, 16, 16).expand(shape)
        shown = pixels(png(image.float() / 255))
        assert (shown == image.permute(1, 2, 0).squeeze(-1).numpy()).all()


def test_pictures_show_the_test_images_and_what_was_added(small_run: RunFolder) -> None:
    found = small_run.illustration
    assert found
    test = load_data("mnist-sample").test.subset(40, small_run.experiment.seed)
    eps = small_run.experiment.attacks[found.attack]["eps"]
    assert 0.9 * eps < found.largest <= eps + 1e-6
    assert found.magnification == pytest.approx(0.5 / found.largest)
    assert len(found.examples) == 4
    for example in found.examples:
        clean = pixels(example.picture).astype(float)
        assert (clean == test.images[example.number, 0].numpy()).all()
        assert example.name == str(int(test.labels[example.number]))
        assert [one.arm for one in example.attacked] == [arm.title for arm in small_run.arms]
        for one in example.attacked:
            change = pixels(one.picture) - clean
            magnified = (pixels(one.perturbation) - 127.5) / found.magnification
            assert np.abs(change).max() <= 255 * eps + 0.5
            assert np.abs(change - magnified).max() <= 0.5 + 0.5 / found.magnification + 1e-3  # both are rounded


def test_the_same_images_every_time(small_run: RunFolder) -> None:
    assert attacked(small_run) == small_run.illustration


def test_the_first_prediction_agrees_with_the_evaluation(small_run: RunFolder) -> None:
    for example in attacked(small_run, count=8).examples:
        for arm, one in zip(small_run.arms, example.attacked, strict=True):
            assert arm.evaluation
            assert one.before.right == bool(arm.evaluation.correct[example.number])
            assert one.before.right or not one.after.right  # an image that is wrong counts as fallen


def test_shows_images_that_every_arm_classifies_correctly(small_run: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(small_run.path, copy)
    for arm in small_run.arms:
        evaluation = arm.evaluation
        assert evaluation
        correct = np.arange(40) >= (30 if arm.name == "poe" else 5)
        attacks = {
            name: dataclasses.replace(result, robust=np.zeros(40, dtype=bool), stages=())
            for name, result in evaluation.attacks.items()
        }
        changed = Evaluation(correct, attacks, (), evaluation.cost, examples=evaluation.examples)
        changed.save(RunFolder(copy).arm(arm.name).evaluation_file)
    numbers, words = choose(RunFolder(copy), 40, 4)
    assert len(numbers) == 4
    assert min(numbers.tolist()) >= 30
    assert "the 10 that every arm" in words
