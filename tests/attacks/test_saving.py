"""Images are saved: as tensors exactly, as PNG to the nearest of 256 levels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from excite.attacks import save_images
from excite.errors import InputError

IMAGES = torch.rand(3, 3, 5, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 0, 1])


def test_tensors_are_saved_exactly(tmp_path: Path) -> None:
    save_images(tmp_path / "adv.safetensors", IMAGES, LABELS)
    stored = load_file(tmp_path / "adv.safetensors")
    assert torch.equal(stored["images"], IMAGES)
    assert torch.equal(stored["labels"], LABELS)
    save_images(tmp_path / "adv.npz", IMAGES, LABELS)
    with np.load(tmp_path / "adv.npz") as arrays:
        assert np.array_equal(arrays["images"], IMAGES.numpy())
        assert arrays["labels"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_in_a_folder_per_label(tmp_path: Path, channels: int) -> None:
    images = IMAGES[:, :channels]
    save_images(tmp_path / "adv", images, LABELS)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    assert files == ["adv/0/00001.png", "adv/1/00000.png", "adv/1/00002.png"]
    pixels = torch.from_numpy(np.asarray(Image.open(tmp_path / "adv/0/00001.png")).copy())
    expected = images[1].permute(1, 2, 0).squeeze(2) if channels == 1 else images[1].permute(1, 2, 0)
    assert (pixels / 255 - expected).abs().max() <= 0.5 / 255 + 1e-6


def test_images_outside_the_box_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="255"):
        save_images(tmp_path / "adv.npz", 255 * IMAGES, LABELS)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("a", (2, 2, 4, 4), "channels"),
        ("a.npz", (2, 16), "N×C×H×W"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path: Path, name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        save_images(tmp_path / name, torch.rand(shape), torch.arange(2))
    assert not list(tmp_path.iterdir())


def test_images_are_not_mixed_with_earlier_ones(tmp_path: Path) -> None:
    save_images(tmp_path / "a", torch.rand(2, 1, 4, 4), torch.arange(2))
    with pytest.raises(InputError, match="new folder"):
        save_images(tmp_path / "a", torch.rand(1, 1, 4, 4), torch.arange(1))
