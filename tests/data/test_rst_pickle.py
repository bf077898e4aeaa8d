import os
import pickle
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from excite import data
from excite.errors import CorruptFileError, InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5])


def rst_file(path: Path, images: object = IMAGES, labels: object = LABELS, protocol: int = 4) -> Path:
    contents = {"data": images, "extrapolated_targets": labels, "prediction_model": "a name", "epoch": 200}
    path.write_bytes(pickle.dumps(contents, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (IMAGES, LABELS),
        (np.asfortranarray(IMAGES), LABELS.astype(">i4")),
        (IMAGES, LABELS.astype(np.uint8)),
        (IMAGES, LABELS.tolist()),
    ],
)
def test_the_file_is_read_as_pickle_would_read_it(
    images: NDArray[np.uint8], labels: object, protocol: int, tmp_path: Path
) -> None:
    path = rst_file(tmp_path / "ti.pickle", images, labels, protocol)
    split = data.load_pseudo_labelled(path)
    twin = pickle.loads(path.read_bytes())
    assert np.array_equal(split.images.numpy(), twin["data"].transpose(0, 3, 1, 2))
    assert split.labels.tolist() == list(twin["extrapolated_targets"])


def test_a_file_of_an_older_numpy_is_read(tmp_path: Path) -> None:
    path = rst_file(tmp_path / "ti.pickle", protocol=2)
    contents = path.read_bytes()
    assert b"numpy._core.multiarray\n" in contents
    path.write_bytes(contents.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n"))
    assert np.array_equal(data.load_pseudo_labelled(path).images.numpy(), IMAGES.transpose(0, 3, 1, 2))


class Evil:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("place", ["alone", "as the data", "in an array of objects", "beside the data"])
@pytest.mark.parametrize("function", [os.mkdir, os.system, eval, exec, getattr, np.load])
def test_a_malicious_pickle_is_refused_and_runs_nothing(
    function: object, place: str, protocol: int, tmp_path: Path
) -> None:
    target = tmp_path / "harm"
    argument = {
        os.mkdir: str(target),
        os.system: f"mkdir {target}",
        eval: f"__import__('os').mkdir({str(target)!r})",
        exec: f"__import__('os').mkdir({str(target)!r})",
    }.get(function, str(target))  # type: ignore[call-overload]
    evil = Evil(function, argument)
    path = tmp_path / "ti.pickle"
    if place == "alone":
        path.write_bytes(pickle.dumps(evil, protocol=protocol))
    elif place == "as the data":
        rst_file(path, images=evil, protocol=protocol)
    elif place == "in an array of objects":
        rst_file(path, images=np.array([evil, evil]), protocol=protocol)
    else:
        path.write_bytes(pickle.dumps([IMAGES, LABELS, evil], protocol=protocol))
    with pytest.raises(CorruptFileError, match=r"ti\.pickle"):
        data.load_pseudo_labelled(path)
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_stand_ins_cannot_be_changed_by_a_pickle(tmp_path: Path) -> None:
    """A BUILD opcode would set attributes of a function or class that the unpickler hands out."""
    path = tmp_path / "ti.pickle"
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"_codecs\nencode", b"numpy._core.numeric\n_frombuffer"):
        path.write_bytes(b"c" + name + b"\n(N}(Vvalues\nK\x01utb.")
        with pytest.raises(CorruptFileError):
            data.load_pseudo_labelled(path)
    assert len(data.load_pseudo_labelled(rst_file(path))) == 5


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    path = rst_file(tmp_path / "ti.pickle")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFileError, match=r"ti\.pickle"):
        data.load_pseudo_labelled(path)


@pytest.mark.parametrize(
    "contents",
    [
        [1, 2],
        {"data": IMAGES},
        {"data": IMAGES[0], "extrapolated_targets": LABELS},
        {"data": "images", "extrapolated_targets": LABELS},
        {"data": IMAGES, "extrapolated_targets": LABELS[:4]},
        {"data": IMAGES.astype(">i2"), "extrapolated_targets": LABELS},
    ],
)
def test_another_file_is_refused(contents: object, tmp_path: Path) -> None:
    path = tmp_path / "ti.pickle"
    path.write_bytes(pickle.dumps(contents))
    with pytest.raises((CorruptFileError, InputError), match=r"ti\.pickle"):
        data.load_pseudo_labelled(path)


def test_floats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="f8"):
        data.load_pseudo_labelled(rst_file(tmp_path / "ti.pickle", images=IMAGES / 255))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ti\.pickle"):
        data.load_pseudo_labelled(tmp_path / "ti.pickle")


LARGE = 2**40
CLAIMS = {
    "bytes of 1 TB": b"\x80\x04\x8e" + struct.pack("<Q", LARGE) + b"x.",
    "text of 1 TB": b"\x80\x04\x8d" + struct.pack("<Q", LARGE) + b"x.",
    "a frame of 1 TB": b"\x80\x04\x95" + struct.pack("<Q", LARGE) + b"N.",
    "a bytearray of 1 TB": b"\x80\x05\x96" + struct.pack("<Q", LARGE) + b"x.",
    "a number of 2 GB": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "four thousand million memories": b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1) + b".",
    "lists in lists": b"\x80\x04" + b"(" * 200_000 + b"l" * 200_000 + b".",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_that_a_file_cannot_keep_are_refused_in_little_memory(claim: str, tmp_path: Path) -> None:
    path = tmp_path / "ti.pickle"
    path.write_bytes(CLAIMS[claim])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((CorruptFileError, InputError), match=r"ti\.pickle"):
        data.load_pseudo_labelled(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
