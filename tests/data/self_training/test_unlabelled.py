"""Unlabelled images and files of pseudo-labels: what is read, what is refused."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from excite.data import PseudoLabels, Unlabelled, load_extra, load_unlabelled
from excite.data.self_training.unlabelled import comes_labelled
from excite.errors import CorruptFileError, InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
NCHW = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())
LABELS = np.array([0, 1, 2, 0, 1, 2])


def saved(path: Path, **arrays: Any) -> str:
    np.savez_compressed(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("images", "labels"), [("x", "y"), ("x_train", "y_train"), ("images", "labels"), ("image", "label")]
)
def test_usual_names_of_images_and_labels_are_understood(images: str, labels: str, tmp_path: Path) -> None:
    without = saved(tmp_path / "without.npz", **{images: IMAGES})
    assert torch.equal(load_unlabelled(without).images, NCHW)
    assert load_unlabelled(without).labels is None
    assert not comes_labelled(without)
    both = saved(tmp_path / "both.npz", **{images: IMAGES, labels: LABELS})
    assert comes_labelled(both)
    extra = load_extra(both)
    assert torch.equal(extra.images, NCHW)
    assert extra.labels.tolist() == LABELS.tolist()


def test_rsts_pickle_is_images_with_labels(tmp_path: Path) -> None:
    path = tmp_path / "ti_500K_pseudo_labeled.pickle"
    path.write_bytes(pickle.dumps({"data": IMAGES, "extrapolated_targets": LABELS}))
    assert comes_labelled(path)
    assert torch.equal(load_extra(path).images, NCHW)
    assert load_extra(path).labels.tolist() == LABELS.tolist()
    with pytest.raises(InputError, match=r"There is no file .*absent\.pickle"):
        comes_labelled(tmp_path / "absent.pickle")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": IMAGES}, r"holds no images. Save them with numpy.savez_compressed\(path, x=…\)"),
        ({"x": IMAGES / 255}, r"must be uint8"),
        ({"x": IMAGES[:0]}, r"at least one image"),
        ({"x": IMAGES, "y": LABELS[:4]}, r"as many labels"),
        ({"x": IMAGES, "y": LABELS - 1}, r"count from 0"),
        ({"x": IMAGES, "y": LABELS / 2}, r"whole numbers"),
        ({"x": np.array([{}])}, r"pickles are never read"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_the_cure(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_unlabelled(saved(tmp_path / "mine.npz", **arrays))


def test_unknown_and_missing_sources_are_named(tmp_path: Path) -> None:
    for use in (load_unlabelled, comes_labelled, load_extra):
        with pytest.raises(InputError, match=r'no unlabelled data "cifar10-10k"; did you mean "cifar10-10k\+40k"'):
            use("cifar10-10k")
        with pytest.raises(InputError, match=r"There is no file .*absent\.npz"):
            use(tmp_path / "absent.npz")
    with pytest.raises(InputError, match=r"mnist-sample-1k\+4k has no labels. Make some with `excite pseudo-label`"):
        load_extra("mnist-sample-1k+4k")
    with pytest.raises(InputError, match="no labels"):
        load_extra(saved(tmp_path / "mine.npz", x=IMAGES))


def test_the_fingerprint_is_of_the_images_alone() -> None:
    one = Unlabelled("one", NCHW)
    assert one.fingerprint() == Unlabelled("other", NCHW.clone(), torch.zeros(6, dtype=torch.int64)).fingerprint()
    assert one.fingerprint() != Unlabelled("one", NCHW.flip(0)).fingerprint()
    assert one.fingerprint() != Unlabelled("one", NCHW.view(6, 3, 4, 5)).fingerprint()


def pseudo_labels(source: str) -> PseudoLabels:
    return PseudoLabels(
        indices=torch.tensor([1, 4, 5]),
        labels=torch.tensor([2, 0, 2]),
        confidences=torch.tensor([0.9, 0.8, 0.7]),
        source=source,
        fingerprint=load_unlabelled(source).fingerprint(),
        teacher={"run": "mine", "arm": "baseline"},
    )


def test_pseudo_labels_come_back_and_find_their_images_after_a_move(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    labels = pseudo_labels(saved(before / "mine.npz", x=IMAGES))
    labels.save(before / "labels" / "pseudo.npz")
    shutil.move(before, after)
    read = PseudoLabels.load(after / "labels" / "pseudo.npz")
    assert torch.equal(read.confidences, labels.confidences)
    assert read.teacher == labels.teacher
    extra = load_extra(after / "labels" / "pseudo.npz")
    assert torch.equal(extra.images, NCHW[[1, 4, 5]])
    assert extra.labels.tolist() == [2, 0, 2]


def test_a_source_in_the_home_folder_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(tmp_path / "mine.npz", x=IMAGES)
    pseudo_labels("~/mine.npz").save(tmp_path / "labels" / "pseudo.npz")
    assert len(load_extra(tmp_path / "labels" / "pseudo.npz")) == 3


def test_pseudo_labels_of_a_named_set_are_small_and_name_it(tmp_path: Path) -> None:
    pseudo_labels("mnist-sample-1k+4k").save(tmp_path / "pseudo.npz")
    assert (tmp_path / "pseudo.npz").stat().st_size < 3000
    hidden = load_unlabelled("mnist-sample-1k+4k")
    assert PseudoLabels.load(tmp_path / "pseudo.npz").source == "mnist-sample-1k+4k"
    assert torch.equal(load_extra(tmp_path / "pseudo.npz").images, hidden.images[[1, 4, 5]])


def test_pseudo_labels_of_other_images_are_refused(tmp_path: Path) -> None:
    labels = pseudo_labels(saved(tmp_path / "mine.npz", x=IMAGES))
    labels.save(tmp_path / "pseudo.npz")
    saved(tmp_path / "mine.npz", x=IMAGES[::-1])
    with pytest.raises(InputError, match=r"not those of the images in mine.npz.*SHA-256"):
        load_extra(tmp_path / "pseudo.npz")
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(InputError, match=r"There is no file .*mine\.npz"):
        load_extra(tmp_path / "pseudo.npz")


def test_damaged_pseudo_labels_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pseudo.npz"
    arrays: dict[str, Any] = {"indices": np.arange(3), "y": LABELS[:3], "confidence": np.ones(3)}
    with pytest.raises(InputError, match="lacks facts"):
        load_extra(saved(path, **arrays))
    with pytest.raises(CorruptFileError, match=r"facts in .* are damaged"):
        load_extra(saved(path, facts=np.array("{"), **arrays))
    source = saved(tmp_path / "mine.npz", x=IMAGES)
    beyond = pseudo_labels(source)
    beyond.indices[0] = 6
    with pytest.raises(CorruptFileError, match="name one beyond them"):
        beyond.attach(load_unlabelled(source))
