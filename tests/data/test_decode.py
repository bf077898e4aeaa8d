import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from excite.data import Dataset, Split
from excite.data.decode import (
    decode_cifar10,
    decode_cifar100,
    decode_mnist,
    decode_png_sheets,
    parse_idx,
    tar_reader,
)


def noise(n: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Split(images, torch.randint(10, (n,), generator=generator))


def records(split: Split, coarse: bool = False) -> bytes:
    """Byte by byte as the CIFAR page describes them."""
    result = b""
    for image, label in zip(split.images, split.labels.tolist(), strict=True):
        result += bytes([99, label] if coarse else [label]) + image.numpy().tobytes()
    return result


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return buffer.getvalue()


def sheet(images: Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(images.permute(0, 2, 3, 1).reshape(-1, 1024, 3).numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def assert_same(found: Split, expected: Split) -> None:
    assert torch.equal(found.images, expected.images)
    assert torch.equal(found.labels, expected.labels)


def whole(parts: list[Split]) -> Split:
    return Split(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))


def test_the_binary_archive_of_cifar10() -> None:
    train, test = [noise(3, seed) for seed in range(5)], noise(2, 9)
    files = {f"cifar-10-batches-bin/data_batch_{i + 1}.bin": records(part) for i, part in enumerate(train)}
    files |= {"cifar-10-batches-bin/test_batch.bin": records(test), "cifar-10-batches-bin/readme.html": b"hello"}
    found_train, found_test = decode_cifar10({"cifar-10-binary.tar.gz": archive(files)}.__getitem__)
    assert_same(found_train, whole(train))
    assert_same(found_test, test)


def test_the_binary_archive_of_cifar100_gives_fine_labels() -> None:
    train, test = noise(4, 0), noise(2, 1)
    files = {
        "cifar-100-binary/train.bin": records(train, coarse=True),
        "cifar-100-binary/test.bin": records(test, coarse=True),
    }
    found_train, found_test = decode_cifar100({"cifar-100-binary.tar.gz": archive(files)}.__getitem__)
    assert_same(found_train, train)
    assert_same(found_test, test)


def test_the_png_sheets_of_cifar10() -> None:
    train, test = [noise(3, seed) for seed in range(5)], noise(2, 9)
    files = {f"data_batch_{i + 1}.png": sheet(part.images) for i, part in enumerate(train)}
    files |= {
        "test_batch.png": sheet(test.images),
        "train_lables.json": json.dumps(whole(train).labels.tolist()).encode(),
        "test_lables.json": json.dumps(test.labels.tolist()).encode(),
    }
    found_train, found_test = decode_png_sheets(files.__getitem__)
    assert_same(found_train, whole(train))
    assert_same(found_test, test)


TWO_BY_THREE = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x03" + bytes([1, 2, 3, 4, 5, 255])


@pytest.mark.parametrize("contents", [TWO_BY_THREE, gzip.compress(TWO_BY_THREE, mtime=0)])
def test_an_idx_file_is_read_gzipped_or_not(contents: bytes) -> None:
    assert parse_idx(contents).tolist() == [[1, 2, 3], [4, 5, 255]]


def test_the_four_files_become_train_and_test(small_files: dict[str, bytes], small_dataset: Dataset) -> None:
    train, test = decode_mnist(small_files.__getitem__)
    assert Dataset("small", train, test, 3).fingerprint() == small_dataset.fingerprint()


def test_a_source_may_name_the_files_its_own_way(small_files: dict[str, bytes], small_dataset: Dataset) -> None:
    renamed = {f"data/{name.removesuffix('.gz')}": gzip.decompress(file) for name, file in small_files.items()}
    train, _ = decode_mnist(renamed.__getitem__, before="data/", after="")
    assert torch.equal(train.images, small_dataset.train.images)


def test_files_are_read_by_name_in_any_order() -> None:
    read = tar_reader(archive({"a": b"1" * 100_000, "b/c": b""}))
    assert read("b/c") == b""
    assert read("a") == b"1" * 100_000
    with pytest.raises(KeyError):
        read("c")


def test_nothing_is_written_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(str(tmp_path / "outside")), io.BytesIO())
        tar.addfile(link)
    read = tar_reader(buffer.getvalue())
    assert list(tmp_path.iterdir()) == [tmp_path / "secret"]
    with pytest.raises(KeyError, match="secret"):
        read("link")
