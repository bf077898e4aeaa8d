import gzip

import pytest
import torch

from excite.data import Dataset
from excite.data.sources.mnist import decode_idx_files, parse_idx
from excite.errors import CorruptFileError

TWO_BY_THREE = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x03" + bytes([1, 2, 3, 4, 5, 255])


@pytest.mark.parametrize("contents", [TWO_BY_THREE, gzip.compress(TWO_BY_THREE, mtime=0)])
def test_an_idx_file_is_read_gzipped_or_not(contents: bytes) -> None:
    assert parse_idx(contents, "x").tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "x is not an idx file"),
        (b"<html>not found</html>", "x is not an idx file"),
        (TWO_BY_THREE[:3], "x is not an idx file"),
        (TWO_BY_THREE[:9], "x is not an idx file"),
        (TWO_BY_THREE.replace(b"\x08\x02", b"\x0d\x02"), "x is not an idx file"),  # floats
        (TWO_BY_THREE[:-1], r"5 bytes for shape \(2, 3\)"),
        (TWO_BY_THREE + b"\x00", r"7 bytes for shape \(2, 3\)"),
        (gzip.compress(TWO_BY_THREE, mtime=0)[:-9], "x is damaged"),
    ],
)
def test_a_damaged_file_is_named(contents: bytes, message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        parse_idx(contents, "x")


def test_the_four_files_become_train_and_test(small_files: dict[str, bytes], small_dataset: Dataset) -> None:
    train, test = decode_idx_files(small_files.__getitem__)
    assert Dataset("small", train, test, 3).fingerprint() == small_dataset.fingerprint()


def test_a_source_may_name_the_files_its_own_way(small_files: dict[str, bytes], small_dataset: Dataset) -> None:
    renamed = {f"data/{name.removesuffix('.gz')}": gzip.decompress(file) for name, file in small_files.items()}
    train, _ = decode_idx_files(renamed.__getitem__, before="data/", after="")
    assert torch.equal(train.images, small_dataset.train.images)
