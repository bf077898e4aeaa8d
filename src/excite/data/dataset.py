"""A data set has two splits, train and test; each has uint8 images and labels as tensors in memory."""

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excite.errors import InputError
from excite.quantities import check_whole
from excite.randomness import generator

MOST_CLASSES = 1_000_000
MOST_CHANNELS = 4  # of an image; more than that in the second dimension is a height
_IMAGES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Split:
    """Images, uint8, N×C×H×W, and labels, int64, N. NumPy arrays and other integer types are converted."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", checked_images(self.images))
        object.__setattr__(self, "labels", checked_labels(self.labels, self.images))

    def __len__(self) -> int:
        return self.images.shape[0]

    def __str__(self) -> str:
        channels, height, width = self.images.shape[1:]
        return f"{len(self):,} images {channels}×{height}×{width}"

    def subset(self, n: int, seed: int = 0) -> "Split":
        """Draw `n` images without replacement; with the same seed, a smaller subset is a prefix of a larger one."""
        check_whole("n", n)
        check_whole("seed", seed, least=0)
        if not 1 <= n <= len(self):
            raise InputError(f"n is {n}; a subset has between 1 and {len(self)} images.")
        chosen = torch.randperm(len(self), generator=generator(seed))[:n].to(self.images.device)
        return Split(self.images.index_select(0, chosen), self.labels.index_select(0, chosen))

    def to(self, device: torch.device) -> "Split":
        """Return the same images on another device."""
        moved = copy.copy(self)  # they have been checked
        object.__setattr__(moved, "images", self.images.to(device))
        object.__setattr__(moved, "labels", self.labels.to(device))
        return moved

    def part(self, start: int, end: int) -> "Split":
        """Return the images with the numbers `start` to `end` - 1."""
        return Split(self.images[start:end], self.labels[start:end])

    def floats(self) -> Tensor:
        """Return the images as float32 in [0, 1]."""
        return unit_floats(self.images)

    @property
    def nbytes(self) -> int:
        """The bytes of the images."""
        return self.images.nbytes

    @property
    def largest_label(self) -> int:
        return int(self.labels.max())

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], tuple[Tensor, ...]]:
        """Return every image once per epoch, in an order that depends on (seed, epoch) alone."""
        shuffled = torch.randperm(len(self), generator=generator(seed, epoch))
        chosen = torch.split(shuffled.to(self.images.device), batch_size)
        return lambda step: (chosen[step],)

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        (chosen,) = parts
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the first images and their labels."""
        return unit_floats(self.images[:examples]), self.labels[:examples]

    def channel_mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and population standard deviation of each channel, for pixels in [0, 1].

        They are exact up to the final rounding, because they are computed from integers.
        """
        chunks = torch.split(self.images, _IMAGES_AT_ONCE)
        sums = torch.stack([chunk.sum((0, 2, 3)) for chunk in chunks]).sum(0).tolist()
        squares = torch.stack([chunk.long().square().sum((0, 2, 3)) for chunk in chunks]).sum(0).tolist()
        total = self.images[:, 0].numel()
        means = tuple(first / (255 * total) for first in sums)
        pairs = zip(sums, squares, strict=True)
        return means, tuple(math.sqrt(total * second - first * first) / (255 * total) for first, second in pairs)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test images of the same shape, the number of classes and their names (by default their numbers)."""

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_whole("num_classes", self.num_classes, least=2)
        names = tuple(map(str, self.class_names or range(min(self.num_classes, MOST_CLASSES))))
        object.__setattr__(self, "class_names", names)
        seen, tested = (set(split.labels.tolist()) for split in (self.train, self.test))
        problem = ""
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            problem = f"train ({self.train}) and test ({self.test}) images differ in shape"
        elif not max(seen | tested) < self.num_classes <= MOST_CLASSES:
            problem = f"num_classes is {self.num_classes}; labels go up to {max(seen | tested)}"
        elif len(seen) == 1:
            problem = f"all training images have class {min(seen)}, so there is nothing to learn; check the labels"
        elif tested - seen:
            problem = f"there are test images of class {min(tested - seen)} but no training images; split differently"
        elif len(names) != self.num_classes:
            problem = f"there are {len(names)} class_names for {self.num_classes} classes; give one for each"
        if problem:
            raise InputError(f"{self.name}: {problem}.")

    def __str__(self) -> str:
        return f"{self.name}: train {self.train}, test {self.test}, {self.num_classes} classes"

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    def fingerprint(self) -> str:
        """Return the SHA-256 of the decoded arrays, which does not depend on the file format.

        It covers, for train and then for test: the sizes N, C, H, W (little-endian int64), the bytes of the images
        in C order, and the labels (little-endian int64).
        """
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            digest.update(np.array(split.images.shape, dtype="<i8").tobytes())
            digest.update(split.images.cpu().contiguous().numpy().data)
            digest.update(split.labels.cpu().numpy().astype("<i8").tobytes())
        return digest.hexdigest()


def from_tensors(
    train_images: Tensor,
    train_labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    *,
    name: str = "own",
    num_classes: int | None = None,
    class_names: Sequence[str] = (),
) -> Dataset:
    """Build a data set from tensors: uint8 images N×C×H×W and int64 labels from 0.

    `num_classes` is by default the number of `class_names`, or the largest label plus 1.

    >>> images, labels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2])
    >>> from_tensors(images, labels, images, labels).num_classes
    3
    """
    train, test = Split(train_images, train_labels), Split(test_images, test_labels)
    if num_classes is None:
        num_classes = len(class_names) or 1 + max(train.largest_label, test.largest_label)
    return Dataset(name, train, test, num_classes, tuple(class_names))


def unit_floats(images: Tensor) -> Tensor:
    """Convert uint8 images to float32 in [0, 1], by dividing by 255."""
    return images.float().div_(255)


def checked_images(given: Any) -> Tensor:
    """Return images as a tensor; raise InputError unless they are uint8, N×C×H×W."""
    images: Tensor = torch.as_tensor(given)
    if images.dtype != torch.uint8:
        cure = "Convert floats in [0, 1] with (images * 255).round().to(torch.uint8)."
        raise InputError(f"Images must be uint8, 0 to 255, not {images.dtype}. {cure}")
    problem = ""
    if images.ndim != 4:
        problem = "convert grayscale images N×H×W with images.unsqueeze(1)"
    elif images.shape[1] == images.shape[2] > MOST_CHANNELS >= images.shape[3]:  # square, with channels last
        problem = "convert N×H×W×C with images.permute(0, 3, 1, 2), arrays with images.transpose(0, 3, 1, 2)"
    elif images.numel() == 0:
        problem = "a split needs at least one image"
    if problem:
        raise InputError(f"Images must be N×C×H×W, not of shape {tuple(images.shape)}; {problem}.")
    return images


def checked_labels(given: Any, images: Tensor) -> Tensor:
    """Return labels as an int64 tensor; raise InputError unless they are class numbers, one per image."""
    labels: Tensor = torch.as_tensor(given)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"Labels must be integers, not {labels.dtype}. Convert them with labels.long().")
    labels = labels.long()
    if labels.shape != images.shape[:1]:
        raise InputError(f"{len(images)} images need labels of shape ({len(images)},), not {tuple(labels.shape)}.")
    if int(labels.min()) < 0:
        raise InputError(f"Labels are class numbers from 0; the smallest label is {int(labels.min())}.")
    return labels
