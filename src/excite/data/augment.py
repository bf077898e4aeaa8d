"""Augment a batch of uint8 images at once, each image with its own random choices."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from excite.data.dataset import unit_floats

Augmentation = Callable[[Tensor, torch.Generator], Tensor]

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601 weights of red, green and blue in brightness


def none(images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Return the images unchanged."""
    return images


def crop_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Pad with `padding` zeros on each side, crop to the old size at a random place, and flip half of the images.

    The generator is on the CPU, so that the choices are the same on every device.
    """
    n, _, height, width = images.shape
    shift = torch.randint(-padding, padding + 1, (2, n, 1), generator=generator).to(images.device)
    mirrored = torch.randint(2, (n, 1), generator=generator, dtype=torch.bool).to(images.device)
    rows = torch.arange(height, device=images.device) + shift[0]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(mirrored, columns.flip(0), columns) + shift[1]
    return _take_pixels(images, rows.unsqueeze(2), columns.unsqueeze(1))


def crop_flip_jitter_rotate(
    images: Tensor, generator: torch.Generator, padding: int = 4, jitter: float = 0.25, degrees: float = 2.0
) -> Tensor:
    """Apply `crop_flip`, scale brightness, contrast and saturation by 1 ± `jitter`, then rotate by up to `degrees`.

    The defaults are those of PGD-AT. The three color changes are applied in this order.
    """
    cropped = crop_flip(images, generator, padding)
    draws = 2 * torch.rand(4, images.shape[0], 1, 1, 1, generator=generator).to(images.device) - 1
    brightness, contrast, saturation = 1 + jitter * draws[:3]
    return _rotate(_jitter(cropped, brightness, contrast, saturation), math.radians(degrees) * draws[3].flatten())


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": none,
    "crop-flip": crop_flip,
    "crop-flip-jitter-rotate": crop_flip_jitter_rotate,
}


def _jitter(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Scale the difference from black, from the image's mean gray, and from its grayscale version."""
    color = (unit_floats(images) * brightness).clamp_(0, 1)
    mean_gray = _gray(color).mean(dim=(2, 3), keepdim=True)
    color = torch.lerp(mean_gray, color, contrast).clamp_(0, 1)
    color = torch.lerp(_gray(color), color, saturation).clamp_(0, 1)
    return color.mul_(255).round_().to(torch.uint8)


def _gray(color: Tensor) -> Tensor:
    """Convert to grayscale, N×1×H×W; images without three channels stay as they are."""
    if color.shape[1] != 3:
        return color
    return (color * color.new_tensor(_LUMA).view(3, 1, 1)).sum(dim=1, keepdim=True)


def _rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Rotate each image around its center by its angle in radians, with the nearest pixel."""
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device).unsqueeze(1) - (height - 1) / 2
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    cos, sin = angles.cos().view(-1, 1, 1), angles.sin().view(-1, 1, 1)
    rows = (cos * y - sin * x + (height - 1) / 2).round_().long()
    columns = (sin * y + cos * x + (width - 1) / 2).round_().long()
    return _take_pixels(images, rows, columns)


def _take_pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Gather the pixels at `rows` and `columns`, which broadcast to N×H×W; pixels outside the image are zero."""
    channels, height, width = images.shape[1:]
    inside = ((rows >= 0) & (rows < height)) & ((columns >= 0) & (columns < width))
    source = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    taken = images.flatten(2).gather(2, source.flatten(1).unsqueeze(1).expand(-1, channels, -1))
    return taken.view_as(images) * inside.unsqueeze(1)
