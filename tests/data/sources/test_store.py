import dataclasses
from pathlib import Path

import pytest
import torch

from excite.data import Dataset, data_directory
from excite.data.sources.description import Description
from excite.data.sources.store import read_stored, stored_file, write_stored
from excite.errors import CorruptFileError


def test_the_data_directory_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXCITE_DATA", str(tmp_path / "environment"))
    assert data_directory(tmp_path / "argument") == tmp_path / "argument"
    assert data_directory() == tmp_path / "environment"
    monkeypatch.delenv("EXCITE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory().parts[-2:] == ("excite", "data")


def test_what_is_written_is_read(tmp_path: Path, small: Description, small_dataset: Dataset) -> None:
    path = stored_file(tmp_path, "small")
    write_stored(path, small_dataset)
    found = read_stored(path, small)
    assert torch.equal(found.train.images, small_dataset.train.images)
    assert torch.equal(found.test.labels, small_dataset.test.labels)
    assert found.num_classes == 3


@pytest.mark.parametrize("damage", ["truncate", "flip an image bit", "flip a label bit", "empty", "other file"])
@pytest.mark.parametrize("fingerprint_known", [True, False])
def test_a_damaged_file_is_noticed_and_the_cure_named(
    damage: str, fingerprint_known: bool, tmp_path: Path, small: Description, small_dataset: Dataset
) -> None:
    path = stored_file(tmp_path, "small")
    write_stored(path, small_dataset)
    contents = bytearray(path.read_bytes())
    image, label = (
        contents.index(tensor.numpy().tobytes()) for tensor in (small_dataset.train.images, small_dataset.test.labels)
    )
    if damage == "truncate":
        del contents[-1:]
    elif damage == "flip an image bit":
        contents[image + 17] ^= 1
    elif damage == "flip a label bit":
        contents[label + 8] ^= 1
    elif damage == "empty":
        contents.clear()
    else:
        contents = bytearray(b"<html>not found</html>")
    path.write_bytes(contents)
    description = small if fingerprint_known else dataclasses.replace(small, fingerprint=None)
    with pytest.raises(CorruptFileError, match=r"small\.safetensors is damaged: .*excite data fetch small"):
        read_stored(path, description)


def test_another_data_set_under_this_name_is_refused(
    tmp_path: Path, small: Description, small_dataset: Dataset
) -> None:
    path = stored_file(tmp_path, "small")
    write_stored(path, Dataset("small", small_dataset.test, small_dataset.train, 3))
    with pytest.raises(CorruptFileError, match="expected 20 and 7 images of 1×6×5"):
        read_stored(path, small)
