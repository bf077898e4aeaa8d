"""A user's own images: folders of PNG and JPEG files, .npz files, and data sets of the package `datasets`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excite import data
from excite.data.catalog import load_once
from excite.errors import CorruptFileError, InputError

RNG = np.random.default_rng(0)


def picture(*shape: int) -> Image.Image:
    return Image.fromarray(RNG.integers(0, 256, shape or (6, 5, 3), dtype=np.uint8))


def fill(folder: Path, count: int = 5, **classes: tuple[int, ...]) -> Path:
    """Write PNG images of random pixels, one folder per class."""
    for name, shape in (classes or {"cat": (6, 5, 3), "dog": (6, 5, 3)}).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(*shape).save(folder / name / f"{number}.png")
    return folder


def pixels(file: Path) -> list[Any]:
    return np.asarray(Image.open(file)).transpose(2, 0, 1).tolist()  # type: ignore[no-any-return]


def test_folders_of_images_become_train_and_test(tmp_path: Path) -> None:
    fill(tmp_path / "train")
    fill(tmp_path / "test", 2)
    picture().save(tmp_path / "train" / "dog" / "9.JPG")
    (tmp_path / "train" / "dog" / "._9.jpg").write_bytes(b"of the Finder")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    dataset = data.from_folder(tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.input_shape) == (11, 4, (3, 6, 5))
    assert (dataset.class_names, dataset.num_classes, dataset.name) == (("cat", "dog"), 2, tmp_path.name)
    assert dataset.train.labels.tolist() == [0] * 5 + [1] * 6
    assert dataset.train.images[1].tolist() == pixels(tmp_path / "train" / "cat" / "1.png")
    assert dataset.test.images[2].tolist() == pixels(tmp_path / "test" / "dog" / "0.png")


def test_without_test_images_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    fill(tmp_path / "photos", 10)
    dataset, again = (data.from_folder(tmp_path / "photos") for _ in range(2))
    assert dataset.fingerprint() == again.fingerprint()
    assert dataset.test.labels.bincount().tolist() == [2, 2]
    assert dataset.train.labels.bincount().tolist() == [8, 8]
    images = {tuple(image.flatten().tolist()) for split in (dataset.train, dataset.test) for image in split.images}
    assert len(images) == 20  # each once


def test_gray_files_stay_gray_unless_one_has_color(tmp_path: Path) -> None:
    gray = data.from_folder(fill(tmp_path / "gray", cat=(6, 5), dog=(6, 5)))
    mixed = data.from_folder(fill(tmp_path / "mixed", cat=(6, 5), dog=(6, 5, 3)))
    assert (gray.input_shape, mixed.input_shape) == ((1, 6, 5), (3, 6, 5))
    cat = mixed.train.images[0]
    assert torch.equal(cat[0], cat[2])


def broken(folder: Path) -> None:
    (fill(folder) / "cat" / "2.png").write_bytes((folder / "cat" / "2.png").read_bytes()[:60])


def of_another_size(folder: Path) -> None:
    picture(7, 5, 3).save(fill(folder) / "dog" / "3.png")


def of_16_bits(folder: Path) -> None:
    Image.fromarray(RNG.integers(0, 65536, (6, 5), dtype=np.uint16)).save(fill(folder) / "dog" / "3.png")


def with_an_empty_class(folder: Path) -> None:
    (fill(folder) / "fox").mkdir()


def with_an_untrained_class(folder: Path) -> None:
    fill(folder / "train")
    fill(folder / "test", cat=(6, 5, 3), fox=(6, 5, 3))


def with_an_empty_test(folder: Path) -> None:
    fill(folder / "train")
    (folder / "test").mkdir()


BAD: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (lambda _: None, InputError, "no folder"),
    (Path.mkdir, InputError, "0 folders"),
    (lambda folder: fill(folder, cat=(6, 5, 3)), InputError, "two classes"),
    (lambda folder: fill(folder, 1), InputError, "one image"),
    (broken, CorruptFileError, r"2\.png"),
    (of_another_size, InputError, "Resize"),
    (of_16_bits, InputError, "8 bits"),
    (with_an_empty_class, InputError, "fox"),
    (with_an_untrained_class, InputError, "no training images"),
    (with_an_empty_test, InputError, "no images"),
]


@pytest.mark.parametrize(("make", "error", "keyword"), BAD)
def test_bad_images_have_an_error_that_names_the_cure(
    make: Callable[[Path], object], error: type[Exception], keyword: str, tmp_path: Path
) -> None:
    make(tmp_path / "photos")
    with pytest.raises(error, match=keyword):
        data.load(f"folder:{tmp_path / 'photos'}")


def test_names_of_own_data(tmp_path: Path) -> None:
    photos = data.from_folder(fill(tmp_path / "photos"))
    tensors = (photos.train.images, photos.train.labels, photos.test.images, photos.test.labels)
    arrays: Any = dict(zip(("x_train", "y_train", "x_test", "y_test"), map(np.asarray, tensors), strict=True))
    np.savez(tmp_path / "photos.npz", **arrays)
    names = (f"folder:{tmp_path / 'photos'}", f"npz:{tmp_path / 'photos.npz'}", str(tmp_path / "photos.npz"))
    assert {data.load(name).fingerprint() for name in names} == {photos.fingerprint()}
    with pytest.raises(InputError, match="folder:PATH"):
        data.load("photos")


def test_images_are_read_again_only_after_a_change(tmp_path: Path) -> None:
    name = f"folder:{fill(tmp_path / 'photos')}"
    before = load_once(name)
    assert load_once(name) is before
    picture().save(tmp_path / "photos" / "cat" / "0.png")
    assert load_once(name).fingerprint() != before.fingerprint()


def saved(folder: Path, count: int = 10, **parts: int) -> Any:
    datasets = pytest.importorskip("datasets", reason="the package `datasets` is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})

    def part(count: int) -> Any:
        columns = {"image": [picture(6, 5) for _ in range(count)], "label": [number % 2 for number in range(count)]}
        return datasets.Dataset.from_dict(columns, features=features)

    made = datasets.DatasetDict({name: part(size) for name, size in parts.items()}) if parts else part(count)
    made.save_to_disk(folder)
    return made


def test_a_data_set_of_hugging_face(tmp_path: Path) -> None:
    made = saved(tmp_path / "mine", train=6, validation=4)
    dataset = data.load(f"hf:{tmp_path / 'mine'}")
    assert (len(dataset.train), len(dataset.test), dataset.input_shape) == (6, 4, (1, 6, 5))
    assert (dataset.class_names, dataset.name) == (("cat", "dog"), "mine")
    assert dataset.train.images[3, 0].tolist() == np.asarray(made["train"][3]["image"]).tolist()
    assert data.from_hugging_face(made, name="mine").fingerprint() == dataset.fingerprint()


def test_a_data_set_of_hugging_face_without_test_images(tmp_path: Path) -> None:
    dataset = data.from_hugging_face(saved(tmp_path / "mine"))
    assert (dataset.train.labels.bincount().tolist(), dataset.test.labels.bincount().tolist()) == ([4, 4], [1, 1])


def test_bad_data_sets_of_hugging_face(tmp_path: Path) -> None:
    made = saved(tmp_path / "mine")
    with pytest.raises(InputError, match="columns"):
        data.from_hugging_face(made.remove_columns("label"))
    with pytest.raises(InputError, match="smallest label is -1"):
        data.from_hugging_face(made.map(lambda row: row | {"label": -1}))
    with pytest.raises(InputError, match="train"):
        data.from_hugging_face({"test": made})
    with pytest.raises(InputError, match="no images"):
        data.from_hugging_face({"train": made, "test": made.select([])})
    words = made.remove_columns("label").add_column("label", ["cat", "dog"] * 5)
    with pytest.raises(InputError, match="class_encode_column"):
        data.from_hugging_face(words)
    with pytest.raises(InputError, match="save_to_disk"):
        data.load(f"hf:{tmp_path}")


def test_datasets_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=re.escape("pip install datasets")):
        data.load(f"hf:{tmp_path}")
