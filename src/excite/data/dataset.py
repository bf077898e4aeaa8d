"""A data set is two splits, train and test, each a tensor of uint8 images and a tensor of labels in memory."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from excite.errors import InputError
from excite.quantities import check_whole
from excite.randomness import generator
from excite.registry import with_named_options

MOST_CLASSES = 1_000_000
MOST_CHANNELS = 4  # of a picture
_WHOLE_NUMBERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32)
_IMAGES_AT_ONCE = 4096


@with_named_options
@dataclass(frozen=True, eq=False)
class Split:
    """Images, uint8, N×C×H×W; labels, int64, N. Arrays become tensors, labels of other whole numbers int64."""

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
        """`n` images drawn without replacement; with one seed, a smaller subset is the beginning of a larger one."""
        check_whole("n", n)
        check_whole("seed", seed, least=0)
        if not 1 <= n <= len(self):
            raise InputError(f"A subset of {n} images cannot be drawn from {len(self)}; pass 1 to {len(self)}.")
        chosen = torch.randperm(len(self), generator=generator(seed))[:n].to(self.images.device)
        return Split(self.images.index_select(0, chosen), self.labels.index_select(0, chosen))

    def part(self, start: int, end: int) -> "Split":
        """The images from `start` to before `end`."""
        return Split(self.images[start:end], self.labels[start:end])

    def floats(self) -> Tensor:
        """The images as float32 in [0, 1]."""
        return unit_floats(self.images)

    @property
    def epoch_images(self) -> int:
        return len(self)

    @property
    def largest_label(self) -> int:
        return int(self.labels.max())

    def order(self, *, batch_size: int, seed: int, epoch: int) -> Callable[[int], tuple[Tensor, ...]]:
        """Every image once an epoch, in an order that follows from (seed, epoch)."""
        shuffled = torch.randperm(len(self), generator=generator(seed, epoch))
        chosen = torch.split(shuffled.to(self.images.device), batch_size)
        return lambda step: (chosen[step],)

    def take(self, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        (chosen,) = parts
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)

    def probe(self, examples: int, batch_size: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The first images and their labels."""
        return unit_floats(self.images[:examples]), self.labels[:examples]

    def channel_mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and (population) standard deviation of each channel in [0, 1] units.

        Exact up to the last rounding: they come from how often each of the 256 values occurs.
        """
        channels = self.images.shape[1]
        counts = torch.zeros(channels, 256, dtype=torch.int64)
        for chunk in torch.split(self.images, _IMAGES_AT_ONCE):
            for channel in range(channels):
                counts[channel] += torch.bincount(chunk[:, channel].flatten(), minlength=256).cpu()
        moments = [_mean_std(channel_counts) for channel_counts in counts.tolist()]
        return tuple(mean for mean, _ in moments), tuple(std for _, std in moments)


@with_named_options
@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test images of one kind, how many classes their labels count, and what these are called.

    Classes without names are called by their numbers.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise InputError(f"Train ({self.train}) and test ({self.test}) images differ in shape.")
        check_whole("num_classes", self.num_classes)
        if not 2 <= self.num_classes <= MOST_CLASSES:
            raise InputError(
                f"{self.name}: the labels are of {self.num_classes} classes; 2 to {MOST_CLASSES:,} can be told apart. "
                "Labels are class numbers from 0."
            )
        largest = max(self.train.largest_label, self.test.largest_label)
        if largest >= self.num_classes:
            raise InputError(
                f"{self.name}: label {largest} needs at least {largest + 1} classes, num_classes is {self.num_classes}."
            )
        known = set(self.train.labels.tolist())
        if len(known) == 1:
            raise InputError(
                f"{self.name}: every training image is of class {known.pop()}; with one class there is nothing to "
                "learn. Check the labels, or take more images."
            )
        if unseen := set(self.test.labels.tolist()) - known:
            raise InputError(
                f"{self.name}: no training image is of class {min(unseen)}, of which there are test images. "
                "Leave them out, or split the images anew."
            )
        object.__setattr__(self, "class_names", tuple(map(str, self.class_names or range(self.num_classes))))
        if len(self.class_names) != self.num_classes:
            raise InputError(
                f"{self.name}: {len(self.class_names)} class names for {self.num_classes} classes; give one each."
            )

    def __str__(self) -> str:
        return f"{self.name}: train {self.train}, test {self.test}, {self.num_classes} classes"

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    def fingerprint(self) -> str:
        """SHA-256 of the decoded arrays, whatever file they came from.

        It covers, for train and then for test: the sizes N, C, H, W (little-endian int64), the bytes of the images
        in C order, the labels (little-endian int64).
        """
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            digest.update(np.array(split.images.shape, dtype="<i8").tobytes())
            digest.update(split.images.cpu().contiguous().numpy().data)
            digest.update(split.labels.cpu().numpy().astype("<i8").tobytes())
        return digest.hexdigest()


def unit_floats(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]: exactly images / 255."""
    return images.float().div_(255)


def checked_images(value: object) -> Tensor:
    """Images as a tensor, if they are uint8 and N×C×H×W."""
    images = _tensor(value, "images")
    if images.dtype != torch.uint8:
        raise InputError(
            f"Images must be uint8 values 0 to 255, not {images.dtype}. "
            "From floats in [0, 1]: (images * 255).round().to(torch.uint8)."
        )
    if images.ndim != 4:
        raise InputError(
            f"Images must be N×C×H×W, not of shape {tuple(images.shape)}. "
            "Grey images of shape N×H×W: images.unsqueeze(1)."
        )
    _, channels, height, width = images.shape
    if channels == height > MOST_CHANNELS >= width:  # square images have their channels last
        raise InputError(
            f"Images must be N×C×H×W; these, of shape {tuple(images.shape)}, are N×H×W×C. "
            "Put the channels second: images.permute(0, 3, 1, 2), of an array images.transpose(0, 3, 1, 2)."
        )
    if images.numel() == 0:
        raise InputError(f"A split needs at least one image; these have shape {tuple(images.shape)}.")
    return images


def checked_labels(value: object, images: Tensor) -> Tensor:
    """Labels as an int64 tensor, if they are class numbers, one per image."""
    labels = _tensor(value, "labels")
    labels = labels.long() if labels.dtype in _WHOLE_NUMBERS else labels
    if labels.dtype != torch.int64:
        raise InputError(f"Labels must be whole numbers, not {labels.dtype}. Convert them: labels.long().")
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"{images.shape[0]} images need as many labels in one dimension; "
            f"the labels have shape {tuple(labels.shape)}."
        )
    if int(labels.min()) < 0:
        raise InputError(f"Labels count from 0; the smallest one here is {int(labels.min())}.")
    return labels


def _tensor(value: object, name: str) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "uifb":
        return torch.from_numpy(np.ascontiguousarray(value, value.dtype.newbyteorder("=")))
    if not isinstance(value, Tensor):
        raise InputError(f"{name.capitalize()} must be a tensor or an array of numbers, not {type(value).__name__}.")
    return value


def _mean_std(counts: list[int]) -> tuple[float, float]:
    total = sum(counts)
    first = sum(value * count for value, count in enumerate(counts))
    second = sum(value * value * count for value, count in enumerate(counts))
    return first / (255 * total), math.sqrt(total * second - first * first) / (255 * total)
