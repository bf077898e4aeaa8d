import hashlib
import struct
from typing import Any

import numpy as np
import pytest
import torch

from excite.data import Dataset, Split
from excite.errors import InputError


def random_split(n: int, channels: int = 3, classes: int = 10, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (n, channels, 5, 4), dtype=torch.uint8, generator=generator)
    return Split(images, torch.randint(classes, (n,), generator=generator))


IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
LABELS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.float(), LABELS, "uint8"),
        (IMAGES.squeeze(1), LABELS, "unsqueeze"),
        (torch.zeros(4, 32, 32, 3, dtype=torch.uint8), LABELS, "permute"),
        (np.zeros((4, 28, 28, 1), dtype=np.uint8), LABELS, "permute"),
        (IMAGES[:0], LABELS[:0], "image"),
        (IMAGES, LABELS.float(), "long"),
        (IMAGES, LABELS[:3], "labels"),
        (IMAGES, LABELS.unsqueeze(1), "labels"),
        (IMAGES, LABELS - 1, "-1"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_the_cure(
    images: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Split(images, labels)


def test_many_channels_and_narrow_images_are_taken() -> None:
    for shape in ((4, 9, 128, 1), (4, 12, 8, 8), (4, 4, 4, 1)):
        assert Split(torch.zeros(shape, dtype=torch.uint8), LABELS).images.shape == shape


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint16, np.uint64])
def test_arrays_and_whole_numbers_of_any_size_are_taken(kind: type) -> None:
    split = Split(IMAGES.numpy(), LABELS.numpy().astype(kind))  # type: ignore[arg-type]
    assert torch.equal(split.images, IMAGES)
    assert split.labels.dtype == torch.int64


def test_a_dataset_that_cannot_be_learned_is_refused() -> None:
    with pytest.raises(InputError, match="num_classes"):
        Dataset("x", Split(IMAGES, LABELS), Split(IMAGES, LABELS), 1)
    with pytest.raises(InputError, match="class 1"):
        Dataset("x", Split(IMAGES, torch.tensor([0, 0, 2, 2])), Split(IMAGES, LABELS + 1), 3)


def test_a_dataset_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="num_classes"):
        Dataset("x", Split(IMAGES, LABELS), Split(IMAGES, LABELS + 9), 9)
    with pytest.raises(InputError, match="shape"):
        Dataset("x", Split(IMAGES, LABELS), random_split(2), 10)


def test_a_dataset_says_what_it_is() -> None:
    dataset = Dataset("noise", random_split(1200), random_split(34), 10)
    assert str(dataset) == "noise: train 1,200 images 3×5×4, test 34 images 3×5×4, 10 classes"
    assert dataset.input_shape == (3, 5, 4)
    assert len(dataset.test) == 34


def test_classes_are_called_by_words() -> None:
    split = Split(IMAGES, torch.tensor([0, 1, 0, 1]))
    assert Dataset("x", split, split, 2, (3, 8)).class_names == ("3", "8")  # type: ignore[arg-type]
    assert Dataset("x", split, split, 2).class_names == ("0", "1")


def test_subset_draws_without_replacement_and_repeats() -> None:
    split = Split(torch.arange(100, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(100))
    small, large = split.subset(10, seed=3), split.subset(50, seed=3)
    assert torch.equal(large.images[:10], small.images)
    assert torch.equal(large.labels[:10], small.labels)
    assert torch.equal(large.images.flatten().long(), large.labels)
    assert len(set(large.labels.tolist())) == 50
    assert not torch.equal(split.subset(10, seed=4).labels, small.labels)
    assert torch.equal(split.subset(100).labels.sort().values, split.labels)


@pytest.mark.parametrize(("n", "seed"), [(2.5, 0), ("2", 0), (True, 0), (2, -1), (2, 0.5), (2, None)])
def test_a_subset_is_drawn_by_whole_numbers(n: Any, seed: Any) -> None:
    with pytest.raises(InputError, match=r"n is|seed is"):
        random_split(5).subset(n, seed)


@pytest.mark.parametrize("n", [0, -1, 6])
def test_a_subset_that_cannot_be_drawn_is_refused(n: int) -> None:
    with pytest.raises(InputError, match="n is"):
        random_split(5).subset(n)


def test_floats_are_exactly_the_255ths() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    floats = Split(images, torch.zeros(1, dtype=torch.int64)).floats()
    assert floats.dtype == torch.float32
    assert floats.flatten().tolist() == [float(np.float32(value) / np.float32(255)) for value in range(256)]
    assert images[0, 0, 0, 1] == 1


def test_channel_mean_std_equals_the_plain_way() -> None:
    split = random_split(9001)
    mean, std = split.channel_mean_std()
    values = split.images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, values.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, values.std(axis=(0, 2, 3)), rtol=1e-12)


def test_channel_mean_std_of_half_black_half_white() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert Split(images, torch.zeros(2, dtype=torch.int64)).channel_mean_std() == ((0.5,), (0.5,))


def test_fingerprint_is_the_documented_hash() -> None:
    train = Split(torch.tensor([[[[1, 2]]], [[[3, 4]]]], dtype=torch.uint8), torch.tensor([0, 300]))
    test = Split(torch.tensor([[[[5, 6]]]], dtype=torch.uint8), torch.tensor([300]))
    expected = hashlib.sha256(
        struct.pack("<4q", 2, 1, 1, 2)
        + bytes([1, 2, 3, 4])
        + struct.pack("<2q", 0, 300)
        + struct.pack("<4q", 1, 1, 1, 2)
        + bytes([5, 6])
        + struct.pack("<q", 300)
    ).hexdigest()
    assert Dataset("x", train, test, 301).fingerprint() == expected


def test_fingerprint_sees_contents_not_layout() -> None:
    split = random_split(6)
    other_layout = Split(split.images.contiguous(memory_format=torch.channels_last), split.labels)
    changed = split.images.clone()
    changed[3, 1, 2, 2] ^= 1

    def fingerprint(train: Split) -> str:
        return Dataset("x", train, split, 10).fingerprint()

    assert fingerprint(other_layout) == fingerprint(split)
    assert fingerprint(Split(changed, split.labels)) != fingerprint(split)
    assert fingerprint(Split(split.images, split.labels.flip(0))) != fingerprint(split)
