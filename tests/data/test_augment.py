import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from excite.data.augment import AUGMENTATIONS, crop_flip, crop_flip_jitter_rotate

Image = NDArray[np.uint8]


def noise(n: int, channels: int = 3, height: int = 12, width: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (n, channels, height, width), dtype=torch.uint8, generator=generator)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_crop_flip(images: Tensor, generator: torch.Generator, padding: int) -> list[Image]:
    """Pad, cut, mirror: one image after the other."""
    n, _, height, width = images.shape
    top, left = (torch.randint(-padding, padding + 1, (2, n, 1), generator=generator) + padding).flatten(1).tolist()
    mirrored = torch.randint(2, (n, 1), generator=generator, dtype=torch.bool).flatten().tolist()
    results = []
    for i in range(n):
        padded = np.pad(images[i].numpy(), ((0, 0), (padding, padding), (padding, padding)))
        crop = padded[:, top[i] : top[i] + height, left[i] : left[i] + width]
        results.append(crop[:, :, ::-1] if mirrored[i] else crop)
    return results


def slow_jitter(image: Image, brightness: float, contrast: float, saturation: float) -> Image:
    def grey(colour: NDArray[np.float64]) -> NDArray[np.float64]:
        if len(colour) != 3:
            return colour
        luma: NDArray[np.float64] = 0.299 * colour[:1] + 0.587 * colour[1:2] + 0.114 * colour[2:]
        return luma

    colour = np.clip(image.astype(np.float64) * brightness, 0, 255)
    mean = grey(colour).mean()
    colour = np.clip(mean + contrast * (colour - mean), 0, 255)
    colour = np.clip(grey(colour) + saturation * (colour - grey(colour)), 0, 255)
    rounded: Image = np.round(colour).astype(np.uint8)
    return rounded


def slow_rotate(image: Image, angle: float) -> Image:
    height, width = image.shape[1:]
    centre_y, centre_x = (height - 1) / 2, (width - 1) / 2
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y, x = row - centre_y, column - centre_x
            source_row = round(math.cos(angle) * y - math.sin(angle) * x + centre_y)
            source_column = round(math.sin(angle) * y + math.cos(angle) * x + centre_x)
            if 0 <= source_row < height and 0 <= source_column < width:
                result[:, row, column] = image[:, source_row, source_column]
    return result


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 9), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)),
    padding=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_crop_flip_equals_the_slow_loop(shape: tuple[int, int, int, int], padding: int, seed: int) -> None:
    images = noise(*shape)
    fast = crop_flip(images, generator(seed), padding)
    slow = slow_crop_flip(images, generator(seed), padding)
    assert fast.dtype == torch.uint8
    assert np.array_equal(fast.numpy(), np.stack(slow))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("degrees", [0.0, 2.0, 180.0])
def test_crop_flip_jitter_rotate_equals_the_slow_loop(channels: int, degrees: float) -> None:
    images = noise(30, channels)
    fast = crop_flip_jitter_rotate(images, generator(), degrees=degrees)
    twin_generator = generator()
    cropped = slow_crop_flip(images, twin_generator, padding=4)
    draws = (2 * torch.rand(4, 30, 1, 1, 1, generator=twin_generator) - 1).view(4, 30).double().numpy()
    factors, angles = 1 + 0.25 * draws[:3], math.radians(degrees) * draws[3]
    slow = [slow_rotate(slow_jitter(image, *factors[:, i]), angles[i]) for i, image in enumerate(cropped)]
    difference = np.abs(fast.numpy().astype(int) - np.stack(slow).astype(int))
    assert difference.max() <= 1  # float32 and float64 may round to neighbouring levels
    assert (difference > 0).mean() < 1e-3


def test_without_strength_only_the_mirror_is_left() -> None:
    images = noise(20)
    result = crop_flip_jitter_rotate(images, generator(), padding=0, jitter=0, degrees=0)
    same, mirrored = (result == images).flatten(1).all(1), (result == images.flip(3)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert same.any()
    assert mirrored.any()


def test_every_shift_and_both_mirrors_are_equally_likely() -> None:
    n = 40_000
    images = torch.zeros(n, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 1
    places = crop_flip(images, generator(), padding=4).flatten(1).sum(0)
    assert int(places.sum()) == n
    expected = n / 81
    assert (places - expected).abs().max() < 5 * math.sqrt(expected)
    images = torch.tensor([0, 1], dtype=torch.uint8).view(1, 1, 1, 2).expand(n, 1, 1, 2)
    mirrored = crop_flip(images, generator(), padding=0)[:, 0, 0, 0].sum()
    assert abs(int(mirrored) - n / 2) < 5 * math.sqrt(n / 4)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_generator_decides_and_the_input_is_left_alone(name: str) -> None:
    images = noise(16)
    before = images.clone()
    first, second = (AUGMENTATIONS[name](images, generator(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(images, before)
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    changed = not torch.equal(AUGMENTATIONS[name](images, generator(4)), first)
    assert changed == (name != "none")
