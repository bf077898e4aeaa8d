"""A small data set that comes, like MNIST, as four gzipped idx files."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch

from excite.data.dataset import Dataset, Split
from excite.data.decode import decode_mnist
from excite.data.sources import Published

IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CLOSED_PORT = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def small_dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        images = torch.randint(256, (n, 1, 6, 5), dtype=torch.uint8, generator=generator)
        return Split(images, torch.randint(3, (n,), generator=generator))

    return Dataset("small", split(20), split(7), 3)


@pytest.fixture(scope="session")
def small_files(small_dataset: Dataset) -> dict[str, bytes]:
    train, test = small_dataset.train, small_dataset.test
    tensors = (train.images.squeeze(1), train.labels, test.images.squeeze(1), test.labels)
    return {name: gzip.compress(_idx(tensor), mtime=0) for name, tensor in zip(IDX_NAMES, tensors, strict=True)}


@pytest.fixture(scope="session")
def small(small_dataset: Dataset, small_files: dict[str, bytes]) -> Published:
    """The small data set; nothing listens at its URL."""
    return Published(
        name="small",
        about="noise",
        num_classes=3,
        input_shape=(1, 6, 5),
        train_images=20,
        test_images=7,
        url=CLOSED_PORT,
        files={
            name: hashlib.md5(contents, usedforsecurity=False).hexdigest() for name, contents in small_files.items()
        },
        decode=decode_mnist,
        fingerprint=small_dataset.fingerprint(),
    )


def _idx(tensor: torch.Tensor) -> bytes:
    values = tensor.numpy().astype(np.uint8)
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
