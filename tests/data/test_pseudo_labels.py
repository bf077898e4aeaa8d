"""Unlabelled images, the labels that a model gives them, and the files that store these."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from excite.data import PseudoLabels, Unlabelled, load_extra, load_unlabelled
from excite.data.pseudo_labels import Labelling, choose, comes_labelled, pseudo_label
from excite.errors import CorruptFileError, InputError

CHOICES = torch.tensor([0, 1, 0, 2, 1, 0])
CONFIDENCES = torch.tensor([0.9, 0.6, 0.95, 0.8, 0.7, 0.5])


def brightness(x: Tensor) -> Tensor:
    """Class 0 for a dark image, 1 for a bright one, the surer the further from grey."""
    value = x.flatten(1).mean(1, keepdim=True) - 0.5
    return 8.0 * torch.cat([-value, value], dim=1)


def grey(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


@pytest.mark.parametrize(
    ("threshold", "balance", "kept"),
    [(0.0, False, [0, 1, 2, 3, 4, 5]), (0.7, False, [0, 2, 3, 4]), (0.0, True, [2, 3, 4]), (0.65, True, [2, 3, 4])],
)
def test_the_confident_ones_are_kept_and_classes_balanced(threshold: float, balance: bool, kept: list[int]) -> None:
    assert choose(CHOICES, CONFIDENCES, num_classes=3, threshold=threshold, balance=balance).tolist() == kept


def test_the_most_confident_of_each_class_are_kept_as_many_as_the_rarest_has() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (200,), generator=generator)
    confidences = torch.rand(200, generator=generator)
    kept = choose(labels, confidences, num_classes=4, threshold=0.2, balance=True)
    sure = [[c for c, y in zip(confidences.tolist(), labels.tolist(), strict=True) if y == k] for k in range(4)]
    fewest = min(len([c for c in confident if c >= 0.2]) for confident in sure)
    for label in range(4):
        assert sorted(confidences[kept][labels[kept] == label].tolist()) == sorted(sure[label])[-fewest:]


@pytest.mark.parametrize(
    ("threshold", "balance", "message"),
    [
        (0.99, False, "0.9500"),
        (0.75, True, "[Cc]lass 1"),
        (1.5, False, "0.9500"),
    ],
)
def test_a_choice_that_keeps_nothing_is_refused(threshold: float, balance: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(CHOICES, CONFIDENCES, num_classes=3, threshold=threshold, balance=balance)


@pytest.mark.parametrize("batch_size", [2, 100])
def test_a_label_is_the_likeliest_class_and_its_probability(batch_size: int) -> None:
    seen: list[tuple[int, int]] = []
    kept = pseudo_label(
        brightness,
        Unlabelled("mine.npz", grey(0, 255, 128, 30, 200)),
        source="mine.npz",
        teacher={},
        batch_size=batch_size,
        on_progress=lambda *at: seen.append(at),
    ).kept
    assert kept.labels.tolist() == [0, 1, 1, 0, 1]
    assert kept.confidences[0] == pytest.approx(1 / (1 + np.exp(-8)), rel=1e-4)
    assert kept.confidences[0] > kept.confidences[3] > kept.confidences[4] > kept.confidences[2]
    assert seen[-1] == (5, 5)


def test_logits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(InputError, match="nan"):
        pseudo_label(lambda x: brightness(x) * float("nan"), Unlabelled("x", grey(0, 255)), source="x", teacher={})


def label(labels: Tensor | None = None, threshold: float = 0.0) -> Labelling:
    images = Unlabelled("mine.npz", grey(0, 255, 128, 30), labels)
    return pseudo_label(brightness, images, source="mine.npz", teacher={"run": "r"}, threshold=threshold)


def test_the_truth_only_judges_and_is_called_a_diagnostic() -> None:
    judged = label(torch.tensor([0, 1, 0, 1]))
    assert judged.kept.labels.tolist() == [0, 1, 1, 0]
    assert (judged.n_correct, judged.accuracy) == (2, 0.5)
    assert "diagnostic only: 50.00% of them" in str(judged)
    assert "4 of 4 images kept" in str(judged)
    assert "per class: 2, 2" in str(judged)
    unjudged = label(threshold=0.9)
    assert unjudged.accuracy is None
    assert "diagnostic" not in str(unjudged)
    assert unjudged.to_json()["kept"] == len(unjudged.kept) == 3
    assert unjudged.to_json()["mean_confidence"] == pytest.approx(unjudged.kept.confidences.mean().item())
    assert unjudged.kept.teacher == {"run": "r", "threshold": 0.9, "balance": False}
    json.dumps(unjudged.to_json())


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
    with pytest.raises(InputError, match=r"absent\.pickle"):
        comes_labelled(tmp_path / "absent.pickle")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": IMAGES}, "x=…"),
        ({"x": IMAGES / 255}, "uint8"),
        ({"x": IMAGES[:0]}, "image"),
        ({"x": IMAGES, "y": LABELS[:4]}, "labels"),
        ({"x": IMAGES, "y": LABELS - 1}, "-1"),
        ({"x": IMAGES, "y": LABELS / 2}, "integers"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_the_cure(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_unlabelled(saved(tmp_path / "mine.npz", **arrays))


def test_unknown_and_missing_sources_are_named(tmp_path: Path) -> None:
    for use in (load_unlabelled, comes_labelled, load_extra):
        with pytest.raises(InputError, match=r'did you mean "cifar10-10k\+40k"'):
            use("cifar10-10k")
        with pytest.raises(InputError, match=r"absent\.npz"):
            use(tmp_path / "absent.npz")
    with pytest.raises(InputError, match="excite pseudo-label"):
        load_extra("mnist-sample-1k+4k")
    with pytest.raises(InputError, match="excite pseudo-label"):
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
    with pytest.raises(InputError, match="SHA-256"):
        load_extra(tmp_path / "pseudo.npz")
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(InputError, match=r"mine\.npz"):
        load_extra(tmp_path / "pseudo.npz")


def test_damaged_pseudo_labels_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pseudo.npz"
    arrays: dict[str, Any] = {"indices": np.arange(3), "y": LABELS[:3], "confidence": np.ones(3)}
    with pytest.raises(CorruptFileError, match="facts"):
        load_extra(saved(path, **arrays))
    with pytest.raises(CorruptFileError, match=r"pseudo\.npz"):
        load_extra(saved(path, facts=np.array("{"), **arrays))
    with pytest.raises(CorruptFileError, match=r"pseudo\.npz"):
        load_extra(saved(path, facts=np.array('{"source": 5, "sha256": "", "teacher": {}}'), **arrays))
