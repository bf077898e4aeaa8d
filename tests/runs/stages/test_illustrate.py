"""The attacked images for the page."""

import base64
import dataclasses
import io
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from excite.console import Console
from excite.data import load as load_data
from excite.evaluation import Evaluation
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.runs.records import Illustration
from excite.runs.stages.attack import choose, illustrate, png


def pixels(uri: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    header, _, encoded = uri.partition(",")
    assert header == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


def attacked(run: RunFolder, copy: Path, count: int = 4) -> Illustration:
    """Attack images of a copy of the run once more."""
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns("illustration.json"))
    illustrate(Run.open(copy, console=Console(quiet=True), device="cpu"), count)
    illustration = RunFolder(copy).illustration
    assert illustration
    return illustration


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


def test_the_same_images_every_time(small_run: RunFolder, tmp_path: Path) -> None:
    assert attacked(small_run, tmp_path / "run") == small_run.illustration


def test_images_are_attacked_again_only_if_an_arm_has_none(small_run: RunFolder, tmp_path: Path) -> None:
    run = Run.open(Path(shutil.copytree(small_run.path, tmp_path / "run")), console=Console(quiet=True), device="cpu")
    stored = run.files.illustration
    assert stored
    before = run.files.illustration_file.read_bytes()
    run.illustrate()
    assert run.files.illustration_file.read_bytes() == before
    msgspec.structs.replace(stored, arms=("baseline",)).save(run.files.illustration_file)
    run.illustrate()
    assert run.files.illustration == stored


def test_the_first_prediction_agrees_with_the_evaluation(small_run: RunFolder, tmp_path: Path) -> None:
    for example in attacked(small_run, tmp_path / "run", count=8).examples:
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
    numbers, words = choose(RunFolder(copy).arms, 40, 4, seed=0)
    assert len(numbers) == 4
    assert min(numbers) >= 30
    assert "the 10 of 40 that every arm" in words
