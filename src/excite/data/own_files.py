"""Read a user's own images: a folder of PNG and JPEG files by class, an .npz file, or a Hugging Face data set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from excite.data.dataset import Dataset, Split
from excite.errors import CorruptFileError, InputError
from excite.quantities import check_kind
from excite.randomness import generator

if TYPE_CHECKING:
    from PIL.Image import Image

Images = tuple[Tensor, Tensor]  # with their labels

HELD_OUT = 0.2  # share of the images of each class
SUFFIXES = {".png", ".jpg", ".jpeg"}
TEST_NAMES = ("test", "val", "validation")  # the first that is there
GRAY, DEEP = {"1", "L", "LA"}, ("I", "F")  # Pillow's modes; DEEP: how those with more than 8 bits a channel begin


def from_folder(path: str | Path) -> Dataset:
    """Read PNG and JPEG images from one folder per class: `path/cat/1.png`, or `path/train/cat/1.png` and `path/test`.

    All images must have the same size; they are grayscale if every file is. Classes are the names of the folders, in
    alphabetical order.

    Args:
        path: the folder. If it has `train`, test images come from its `test`, or else from its `val` or `validation`.
            Without test images, a fifth of each class is drawn for testing, the same images every time.

    Returns:
        A data set named after the folder.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise InputError(f"There is no folder {root}. Name the folder that holds one folder of images per class.")
    train = root / "train" if (root / "train").is_dir() else root
    test = next((root / name for name in TEST_NAMES if train != root and (root / name).is_dir()), None)
    classes = sorted({*_folders(train), *(_folders(test) if test else ())})
    if len(classes) < 2:
        raise InputError(
            f"{train} has {len(classes)} folders, one per class is needed, and at least two classes. Sort the images "
            f"into folders such as {train / 'cat'} and {train / 'dog'}."
        )
    return _dataset(root.resolve().name, classes, _read(train, classes), _read(test, classes) if test else None)


def from_hugging_face(dataset: Any, *, name: str = "own") -> Dataset:
    """Convert a data set of the package `datasets`, which has a column of images and one of class numbers.

    Args:
        dataset: a `datasets.Dataset`, or a `DatasetDict` with `train` and, if there are test images, `test`, `val` or
            `validation`. Without test images, a fifth of each class is drawn for testing.
        name: the name of the result.

    Returns:
        The images in memory.
    """
    parts = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    if "train" not in parts:
        raise InputError(f"The data set has the parts {', '.join(parts)}; name one of them train.")
    check_kind("dataset", parts["train"], "features", "a datasets.Dataset or DatasetDict")
    columns = parts["train"].features
    pictures = [column for column, kind in columns.items() if type(kind).__name__ == "Image"]
    targets = [column for column, kind in columns.items() if type(kind).__name__ == "ClassLabel"]
    targets = targets or [name for name in ("label", "labels") if name in columns and "int" in columns[name].dtype]
    if len(pictures) != 1 or len(targets) != 1:
        raise InputError(
            f"The columns are {', '.join(columns)}; one of images (datasets.Image) and one of class numbers "
            "(datasets.ClassLabel, or integers called label) are needed. Remove the others, or convert them with "
            "dataset.cast_column and dataset.class_encode_column."
        )

    def read(part: Any) -> Images:
        named = ((f"image {number}", picture) for number, picture in enumerate(part[pictures[0]]))
        return _stack(named, lambda picture: picture), torch.tensor(part[targets[0]][:], dtype=torch.int64)

    train = read(parts["train"])
    classes = list(getattr(columns[targets[0]], "names", map(str, range(1 + int(train[1].max())))))
    test = next((read(parts[part]) for part in TEST_NAMES if part in parts), None)
    return _dataset(name, classes, train, test)


def load_from_disk(path: Path) -> Dataset:
    """Read a data set that the package `datasets` has saved with `save_to_disk`."""
    try:
        import datasets
    except ImportError as error:
        raise InputError("datasets is missing. Run: pip install datasets") from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} holds no data set ({error}). Write it with dataset.save_to_disk.") from error
    return from_hugging_face(loaded, name=path.resolve().name)


def _folders(path: Path) -> list[str]:
    return [each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")]


def _read(root: Path, classes: Sequence[str]) -> Images:
    from PIL import Image

    files, labels = list[Path](), list[int]()
    for label, folder in enumerate(root / name for name in classes):
        inside = sorted(file for file in folder.glob("[!.]*") if file.suffix.lower() in SUFFIXES)
        if folder.is_dir() and not inside:
            raise InputError(f"{folder} has no PNG or JPEG images. Add some, or remove the folder.")
        files += inside
        labels += [label] * len(inside)
    return _stack(((str(file), file) for file in files), Image.open), torch.tensor(labels)


def _stack(named: Iterable[tuple[str, Any]], opened: Callable[[Any], "Image"]) -> Tensor:
    """Decode images of one size into N×C×H×W; all become RGB if one of them has color."""
    arrays = list[np.ndarray[Any, np.dtype[np.uint8]]]()
    for name, source in named:
        try:
            with opened(source) as picture:
                mode = picture.mode
                array = np.asarray(picture.convert("L" if mode in GRAY else "RGB"))
        except Exception as error:  # Pillow raises many kinds for damaged files
            raise CorruptFileError(f"{name} cannot be read as an image ({error}). Replace or remove it.") from error
        if mode.startswith(DEEP):
            raise InputError(f"{name} has more than 8 bits per channel (mode {mode}). Convert the images to 8 bits.")
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            (height, width), (other_height, other_width) = arrays[0].shape[:2], array.shape[:2]
            raise InputError(
                f"{name} has {other_width}×{other_height} pixels, images before it {width}×{height}. Resize all images "
                f"to one size first, for instance with Pillow: image.resize(({width}, {height}))."
            )
        arrays.append(array)
    if not arrays:
        raise InputError("There are no images for training or for testing. Add some, or leave out that part.")
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[..., None], 3, axis=2) for array in arrays]
    stacked = torch.from_numpy(np.stack(arrays))
    return stacked.unsqueeze(1) if stacked.ndim == 3 else stacked.permute(0, 3, 1, 2).contiguous()


def _dataset(name: str, classes: Sequence[str], train: Images, test: Images | None) -> Dataset:
    """Without test images, split off a share of the images of each class, at least one of them."""
    whole, held_out = Split(*train), torch.zeros(len(train[1]), dtype=torch.bool)  # a Split checks the labels
    if test is not None:
        return Dataset(name, whole, Split(*test), len(classes), tuple(classes))
    for label in sorted(set(whole.labels.tolist())):
        members = torch.where(whole.labels == label)[0]
        if len(members) < 2:
            raise InputError(f"Class {label} has one image. Add more: some are for training, some for testing.")
        count = max(1, round(HELD_OUT * len(members)))
        held_out[members[torch.randperm(len(members), generator=generator(0, label))[:count]]] = True
    kept, drawn = (Split(whole.images[mask], whole.labels[mask]) for mask in (~held_out, held_out))
    return Dataset(name, kept, drawn, len(classes), tuple(classes))
