"""A file of pseudo-labels names the images it labels by their places in the unlabelled set; it never copies them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excite.data.dataset import Split
from excite.data.self_training.hidden_labels import HIDDEN_LABELS
from excite.data.self_training.unlabelled import Unlabelled, load_unlabelled
from excite.data.sources.npz import open_npz
from excite.errors import CorruptFileError, InputError
from excite.files import atomic
from excite.registry import named_options

_KEYS = ("indices", "y", "confidence", "facts")


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Which images of an unlabelled set are kept, the label of each and the teacher's confidence in it.

    `source` is the name of the unlabelled set or the path of its file, `fingerprint` the SHA-256 of its images,
    `teacher` says which model labelled them and how.
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
        """Write an .npz; the path of the images' file is kept relative to it, so that the two may move together."""
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
            if missing := [key for key in _KEYS if key not in archive]:
                raise InputError(
                    f"{path} lacks {', '.join(missing)}: no file of pseudo-labels. `excite pseudo-label` makes one."
                )
            indices, labels, confidences, facts = (archive[key] for key in _KEYS)
        try:
            described = json.loads(str(facts))
            source, fingerprint, teacher = described["source"], described["sha256"], described["teacher"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"The facts in {path} are damaged ({error}). Make it again.") from error
        return cls(
            torch.from_numpy(indices.astype(np.int64)),
            torch.from_numpy(labels.astype(np.int64)),
            torch.from_numpy(confidences.astype(np.float32)),
            source if source in HIDDEN_LABELS else str(path.parent / source),
            fingerprint,
            teacher,
        )

    def attach(self, unlabelled: Unlabelled) -> Split:
        """The kept images with their pseudo-labels."""
        if unlabelled.fingerprint() != self.fingerprint:
            raise InputError(
                f"These pseudo-labels are not those of the images in {unlabelled.name}: the SHA-256 of the images "
                f"differs. Put back the file they were made from, or label this one with `excite pseudo-label`."
            )
        if bool(((self.indices < 0) | (self.indices >= len(unlabelled))).any()):
            raise CorruptFileError(
                f"Pseudo-labels for {len(unlabelled):,} images name one beyond them. Make the file again."
            )
        return Split(unlabelled.images[self.indices], self.labels)


@named_options
def load_extra(source: str | Path) -> Split:
    """Images that come with labels to train on: a file of pseudo-labels, RST's pickle, an .npz with labels."""
    path = Path(source).expanduser()
    if path.suffix == ".npz" and _is_pseudo_labels(path):
        labels = PseudoLabels.load(path)
        return labels.attach(load_unlabelled(labels.source))
    loaded = load_unlabelled(source)
    if loaded.labels is None or str(source) in HIDDEN_LABELS:
        raise InputError(f"{source} has no labels. Make some with `excite pseudo-label`, or add a [teacher] section.")
    return Split(loaded.images, loaded.labels)


def _is_pseudo_labels(path: Path) -> bool:
    with open_npz(path) as archive:
        return "indices" in archive
