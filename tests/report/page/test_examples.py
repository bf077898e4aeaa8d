"""The attacked images of a real run."""

import base64
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from excite.data import load as load_data
from excite.errors import DataUnavailableError, InputError
from excite.files import write_json
from excite.report.page.examples import attacked_examples, png
from excite.runs.experiment import with_values
from excite.runs.folder import EXPERIMENT, RunFolder


def pixels(uri: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    header, _, encoded = uri.partition(",")
    assert header == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


def test_png_is_lossless() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    for shape in ((1, 16, 16), (3, 16, 16)):
        image = levels.view(1, 16, 16).expand(shape)
        shown = pixels(png(image.float() / 255))
        assert (shown == image.permute(1, 2, 0).squeeze(-1).numpy()).all()


def test_pictures_show_the_test_images_and_what_was_added(small_run: RunFolder) -> None:
    found = attacked_examples(small_run)
    test = load_data("mnist-sample").test.subset(40, small_run.experiment.seed)
    eps = small_run.experiment.attacks[found.attack]["eps"]
    assert 0.9 * eps < found.largest <= eps + 1e-6
    assert found.magnification == pytest.approx(0.5 / found.largest)
    assert len(found.examples) == 4
    for example in found.examples:
        clean = pixels(example.picture).astype(float)
        assert (clean == test.images[example.number, 0].numpy()).all()
        assert example.name == str(int(test.labels[example.number]))
        assert [attacked.arm for attacked in example.attacked] == [arm.title for arm in small_run.arms]
        for attacked in example.attacked:
            change = pixels(attacked.picture) - clean
            magnified = (pixels(attacked.perturbation) - 127.5) / found.magnification
            assert np.abs(change).max() <= 255 * eps + 0.5
            assert np.abs(change - magnified).max() <= 0.5 + 0.5 / found.magnification + 1e-3  # both are rounded


def test_the_same_images_every_time(small_run: RunFolder) -> None:
    assert attacked_examples(small_run) == attacked_examples(small_run)


def test_the_first_prediction_agrees_with_the_evaluation(small_run: RunFolder) -> None:
    for example in attacked_examples(small_run, count=8).examples:
        for arm, attacked in zip(small_run.arms, example.attacked, strict=True):
            assert arm.evaluation
            assert attacked.before.right == bool(arm.evaluation.correct[example.number])
            assert attacked.before.right or not attacked.after.right  # an image that is wrong counts as fallen


def test_without_checkpoint_or_data_it_says_why(
    small_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(small_run.path, copy)
    monkeypatch.setenv("EXCITE_DATA", str(tmp_path / "no data"))
    write_json(copy / EXPERIMENT, with_values(small_run.experiment, {"data.name": "cifar10"}).to_json())
    with pytest.raises(DataUnavailableError, match="excite data fetch cifar10"):
        attacked_examples(RunFolder(copy))
    for facts in copy.glob("*/checkpoint.json"):
        facts.unlink()
    with pytest.raises(InputError, match="no checkpoint"):
        attacked_examples(RunFolder(copy))
