"""Save images: tensors keep every value of an adversarial image, PNG files keep 256 levels."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from excite.attacks.protocol import check_examples
from excite.errors import InputError
from excite.files import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image


def save_images(path: Path | str, images: Tensor, labels: Tensor) -> None:
    """Save images in [0, 1] and their labels to a .safetensors or .npz file, or as PNG files in a folder per label.

    PNG rounds each pixel to a multiple of 1/255, which can undo a small perturbation.
    """
    check_examples(images, labels)
    if images.dim() != 4:
        raise InputError(f"Images must be N×C×H×W, but have the shape {tuple(images.shape)}. Pass images.unflatten(…).")
    path, images, labels = Path(path), images.detach().cpu(), labels.cpu()
    if path.suffix == ".safetensors":
        tensors = {"images": images.contiguous(), "labels": labels.contiguous()}
        write_bytes(path, safetensors.torch.save(tensors))
    elif path.suffix == ".npz":
        np.savez(file := io.BytesIO(), images=images.float().numpy(), labels=labels.numpy())
        write_bytes(path, file.getvalue())
    elif images.shape[1] not in (1, 3):
        raise InputError(f"PNG files have 1 or 3 channels, not {images.shape[1]}. Save to .safetensors or .npz.")
    elif path.exists() and any(path.iterdir()):
        raise InputError(f"{path} already has files, which would be mixed with these. Name a new folder, or delete it.")
    else:
        for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            as_picture(image).save(file := io.BytesIO(), format="PNG")
            write_bytes(path / str(label) / f"{number:05}.png", file.getvalue())


def as_picture(image: Tensor) -> "Image":
    """A C×H×W image with values in [0, 1] and one or three channels, with 8 bits per channel."""
    from PIL import Image

    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray((levels[0] if len(levels) == 1 else levels.permute(1, 2, 0)).numpy())
