"""Decode the published files of MNIST and CIFAR in memory; archives are never extracted to disk.

A damaged file raises an error of gzip, tarfile, NumPy or Pillow.
"""

import gzip
import io
import json
import math
import struct
import tarfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from excite.data.dataset import Split

ReadFile = Callable[[str], bytes]  # file name -> contents

MNIST_FILES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR_SHAPE = (3, 32, 32)


def decode_mnist(read: ReadFile, *, before: str = "", after: str = ".gz") -> tuple[Split, Split]:
    """Decode four idx files; a mirror may have put a folder `before` and another ending `after` their names."""
    train_images, train_labels, test_images, test_labels = (
        parse_idx(read(f"{before}{name}{after}")) for name in MNIST_FILES
    )
    return Split(train_images.unsqueeze(1), train_labels), Split(test_images.unsqueeze(1), test_labels)


def parse_idx(contents: bytes) -> Tensor:
    """Return an idx file of unsigned bytes, gzipped or not, as a uint8 tensor."""
    if contents[:2] == b"\x1f\x8b":
        contents = gzip.decompress(contents)
    if contents[:3] != b"\x00\x00\x08":
        raise ValueError("not an idx file of unsigned bytes")
    dimensions = contents[3]
    shape = struct.unpack_from(f">{dimensions}I", contents, 4)
    return torch.from_numpy(np.frombuffer(contents, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())


def decode_cifar10(read: ReadFile) -> tuple[Split, Split]:
    member = tar_reader(read("cifar-10-binary.tar.gz"))
    train = b"".join(member(f"cifar-10-batches-bin/{batch}.bin") for batch in _CIFAR10_BATCHES)
    test = member("cifar-10-batches-bin/test_batch.bin")
    return parse_records(train, label_bytes=1), parse_records(test, label_bytes=1)


def decode_cifar100(read: ReadFile) -> tuple[Split, Split]:
    member = tar_reader(read("cifar-100-binary.tar.gz"))
    train, test = (parse_records(member(f"cifar-100-binary/{part}.bin"), label_bytes=2) for part in ("train", "test"))
    return train, test


def parse_records(contents: bytes, *, label_bytes: int) -> Split:
    """Decode records of labels and an image; the last label is the class (CIFAR-100 has a coarse and a fine one)."""
    records = torch.frombuffer(bytearray(contents), dtype=torch.uint8).view(-1, label_bytes + math.prod(_CIFAR_SHAPE))
    return Split(records[:, label_bytes:].reshape(-1, *_CIFAR_SHAPE), records[:, label_bytes - 1])


def decode_png_sheets(read: ReadFile) -> tuple[Split, Split]:
    """Decode CIFAR-10 from six PNG sheets, each row an image of 1024 pixels, and JSON lists of labels."""
    train_images = torch.cat([parse_sheet(read(f"{batch}.png")) for batch in _CIFAR10_BATCHES])
    test_images = parse_sheet(read("test_batch.png"))
    # The package spells it "lables".
    train_labels, test_labels = (torch.tensor(json.loads(read(f"{part}_lables.json"))) for part in ("train", "test"))
    return Split(train_images, train_labels), Split(test_images, test_labels)


def parse_sheet(png: bytes) -> Tensor:
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
        rows = np.array(sheet)
    return torch.from_numpy(rows.transpose(0, 2, 1).reshape(-1, *_CIFAR_SHAPE))


def tar_reader(contents: bytes) -> ReadFile:
    """Return a function that reads the files of a .tar.gz archive in memory."""
    tar = tarfile.open(fileobj=io.BytesIO(gzip.decompress(contents)))  # noqa: SIM115  in memory

    def read(name: str) -> bytes:
        file = tar.extractfile(name)
        if file is None:
            raise ValueError(f"{name} is not a file")
        return file.read()

    return read
