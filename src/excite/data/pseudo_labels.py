"""Self-training: load images without labels, let a model label them, and store these pseudo-labels."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excite.data.catalog import HIDDEN_LABELS, data_directory
from excite.data.dataset import Split, checked_images, checked_labels, unit_floats
from excite.data.image_files import label_name, load_images, open_npz
from excite.data.tiny_images import RST_FILE, cure, load_pseudo_labelled
from excite.errors import InputError, unknown
from excite.files import atomic
from excite.quantities import OnProgress

Predict = Callable[[Tensor], Tensor]  # images in [0, 1] -> logits; for example a model in eval mode

_SUFFIXES = (".npz", ".pickle", ".pkl")


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Images, uint8, N×C×H×W. If `labels` are known, they only serve to evaluate pseudo-labels."""

    name: str
    images: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", checked_images(self.images))
        if self.labels is not None:
            object.__setattr__(self, "labels", checked_labels(self.labels, self.images))

    def __len__(self) -> int:
        return self.images.shape[0]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the sizes N, C, H, W (little-endian int64) and the bytes of the images in C order."""
        digest = hashlib.sha256(np.array(self.images.shape, dtype="<i8").tobytes())
        digest.update(self.images.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def load_unlabelled(source: str | Path) -> Unlabelled:
    """Load images from a data set with hidden labels (by name), an .npz file, or RST's pickle."""
    path = _checked_path(source)
    if path is None:
        hidden = HIDDEN_LABELS[str(source)].hidden_part(data_directory())
        return Unlabelled(str(source), hidden.images, hidden.labels)
    if path.suffix == ".npz":
        return Unlabelled(path.name, *load_images(path))
    split = load_pseudo_labelled(path)
    return Unlabelled(path.name, split.images, split.labels)


def comes_labelled(source: str | Path) -> bool:
    """Return whether the images have labels to train on, so that no teacher is needed. Reads no images."""
    path = _checked_path(source)
    if path is None or path.suffix != ".npz":
        return path is not None
    with open_npz(path) as archive:
        return label_name(archive) is not None


def _checked_path(source: str | Path) -> Path | None:
    """Return the path of a file of images; None for the name of a data set with hidden labels."""
    path = Path(source).expanduser()
    if str(source) in HIDDEN_LABELS:
        return None
    if path.suffix not in _SUFFIXES:
        known = [*HIDDEN_LABELS, "the path of an .npz file or of RST's .pickle"]
        raise unknown("unlabelled data", str(source), known)
    if not path.is_file() and path == Path(RST_FILE):  # by its name alone it may also lie in the data directory
        path = data_directory() / RST_FILE
    if not path.is_file():
        raise InputError(f"There is no file {source}." + (f" {cure(path.parent)}" if path.name == RST_FILE else ""))
    return path


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """The labels that a teacher gave to some images of an unlabelled set, and its confidence in each.

    Attributes:
        indices: the numbers of the images in the unlabelled set.
        source: the name of the unlabelled set, or the path of its file.
        fingerprint: the SHA-256 of its images.
        teacher: which model labelled them, and how.
    """

    indices: Tensor
    labels: Tensor
    confidences: Tensor
    source: str
    fingerprint: str
    teacher: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.indices)

    def save(self, path: Path) -> None:
        """Write an .npz file without the images. The path of their file is stored relative to `path`."""
        source = self.source
        if source not in HIDDEN_LABELS:
            source = os.path.relpath(Path(source).expanduser(), path.parent)
        facts = {"source": source, "sha256": self.fingerprint, "teacher": self.teacher}
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                indices=self.indices.numpy(),
                y=self.labels.numpy(),
                confidence=self.confidences.numpy(),
                facts=np.array(json.dumps(facts, default=str)),
            )

    @classmethod
    def load(cls, path: Path) -> "PseudoLabels":
        with open_npz(path) as archive:
            facts = json.loads(str(archive["facts"]))
            return cls(
                torch.from_numpy(archive["indices"].astype(np.int64)),
                torch.from_numpy(archive["y"].astype(np.int64)),
                torch.from_numpy(archive["confidence"].astype(np.float32)),
                facts["source"] if facts["source"] in HIDDEN_LABELS else str(path.parent / facts["source"]),
                facts["sha256"],
                facts["teacher"],
            )

    def attach(self, unlabelled: Unlabelled) -> Split:
        """Return the labelled images with their pseudo-labels."""
        if unlabelled.fingerprint() != self.fingerprint:
            raise InputError(
                f"The pseudo-labels are for other images than those in {unlabelled.name} (another SHA-256). "
                "Restore the original file, or label this one with `excite pseudo-label`."
            )
        return Split(unlabelled.images[self.indices], self.labels)


def load_extra(source: str | Path) -> Split:
    """Load images with labels to train on, from a file of pseudo-labels, RST's pickle, or an .npz with labels."""
    path = _checked_path(source)
    if path is not None and path.suffix == ".npz":
        with open_npz(path) as archive:
            is_pseudo_labels = "indices" in archive
        if is_pseudo_labels:
            labels = PseudoLabels.load(path)
            return labels.attach(load_unlabelled(labels.source))
    loaded = load_unlabelled(source)
    if loaded.labels is None or str(source) in HIDDEN_LABELS:
        raise InputError(f"{source} has no labels. Make some with `excite pseudo-label`, or add a [teacher] section.")
    return Split(loaded.images, loaded.labels)


@dataclass(frozen=True, eq=False)
class Labelling:
    """The result of `pseudo_label`; `accuracy` is known only if the images have true labels."""

    kept: PseudoLabels
    candidates: int
    num_classes: int
    n_correct: int | None

    @property
    def accuracy(self) -> float | None:
        return None if self.n_correct is None else self.n_correct / len(self.kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.kept.source,
            "candidates": self.candidates,
            "kept": len(self.kept),
            "per_class": self.kept.labels.bincount(minlength=self.num_classes).tolist(),
            "mean_confidence": float(self.kept.confidences.double().mean()),
            "hidden_label_accuracy": self.accuracy,
        }

    def __str__(self) -> str:
        facts = self.to_json()
        lines = [
            f"{Path(self.kept.source).name}: {facts['kept']:,} of {self.candidates:,} images kept, "
            f"mean confidence {facts['mean_confidence']:.2%}",
            f"per class: {', '.join(f'{count:,}' for count in facts['per_class'])}",
        ]
        if self.accuracy is not None:
            lines.append(
                f"diagnostic only: {self.accuracy:.2%} of them match the true labels, which training does not use"
            )
        return "\n".join(lines)


def check_shape(unlabelled: Unlabelled, trained_on: tuple[int, ...]) -> None:
    if unlabelled.images.shape[1:] != trained_on:
        takes, has = ("×".join(map(str, shape)) for shape in (trained_on, unlabelled.images.shape[1:]))
        raise InputError(f"The model takes images of {takes}; {unlabelled.name} has images of {has}.")


def pseudo_label(
    predict: Predict,
    unlabelled: Unlabelled,
    *,
    source: str,
    teacher: Mapping[str, Any],
    threshold: float = 0.0,
    balance: bool = False,
    batch_size: int = 128,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Labelling:
    """Label every image with its most likely class and keep the images that `choose` selects."""
    batches, n_done = [], 0
    for images in torch.split(unlabelled.images, batch_size):
        with torch.no_grad():
            logits = predict(unit_floats(images)).cpu()
        batches.append(torch.max(logits.softmax(1), dim=1))
        n_done += len(images)
        on_progress(n_done, len(unlabelled))
    confidences, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    num_classes = logits.shape[1]
    indices = choose(labels, confidences, num_classes=num_classes, threshold=threshold, balance=balance)
    kept = PseudoLabels(
        indices=indices,
        labels=labels[indices],
        confidences=confidences[indices],
        source=source,
        fingerprint=unlabelled.fingerprint(),
        teacher={**teacher, "threshold": threshold, "balance": balance},
    )
    n_correct = None if unlabelled.labels is None else int((kept.labels == unlabelled.labels[indices]).sum())
    return Labelling(kept, len(unlabelled), num_classes, n_correct)


def choose(
    labels: Tensor, confidences: Tensor, *, num_classes: int, threshold: float = 0.0, balance: bool = False
) -> Tensor:
    """Return the numbers of the images to keep, in ascending order: those with at least `threshold` confidence.

    With `balance`, keep the most confident images of each class, as many as the smallest class has.

    >>> choose(torch.tensor([0, 0, 1]), torch.tensor([0.7, 0.9, 0.8]), num_classes=2, balance=True)
    tensor([1, 2])
    """
    confident = torch.where(confidences >= threshold)[0]
    if len(confident) == 0:
        raise InputError(f"The largest confidence is {float(confidences.max()):.4f}; lower the threshold, {threshold}.")
    if not balance:
        return confident
    per_class = labels[confident].bincount(minlength=num_classes)
    if not per_class.min():
        raise InputError(
            f"Class {int(per_class.argmin())} has no confident images. Lower the threshold, or do not balance classes."
        )
    by_confidence = confident[confidences[confident].argsort(descending=True, stable=True)]
    chosen = [by_confidence[labels[by_confidence] == label][: per_class.min()] for label in range(num_classes)]
    return torch.cat(chosen).sort().values
