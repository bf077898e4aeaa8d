"""RST's file is fetched and checked where the network allows it; otherwise the error names its address and place."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from excite import data
from excite.data.pseudo_labels import comes_labelled
from excite.data.tiny_images import ADDRESS, RST_FILE, fetch_tiny_images
from excite.errors import CorruptFileError, DataUnavailableError, InputError

CLOSED = "http://127.0.0.1:9/closed"


def small_file(path: Path) -> None:
    arrays = {"data": np.zeros((3, 32, 32, 3), np.uint8), "extrapolated_targets": np.arange(3)}
    path.write_bytes(pickle.dumps(arrays))


def test_without_a_network_the_error_names_the_address_and_the_place(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError) as caught:
        fetch_tiny_images(tmp_path, CLOSED)
    assert ADDRESS in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / RST_FILE).exists()


def test_a_file_with_other_contents_is_refused(tmp_path: Path) -> None:
    small_file(tmp_path / RST_FILE)
    with pytest.raises(CorruptFileError, match="500,000"):
        data.fetch(RST_FILE, tmp_path)


def test_it_is_found_in_the_data_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXCITE_DATA", str(tmp_path / "data"))
    with pytest.raises(InputError, match="excite data fetch") as caught:
        comes_labelled(RST_FILE)
    assert ADDRESS in str(caught.value)
    (tmp_path / "data").mkdir()
    small_file(tmp_path / "data" / RST_FILE)
    assert comes_labelled(RST_FILE)
    assert len(data.load_unlabelled(RST_FILE)) == 3
