"""A model labels images that have no labels, says how sure it is of each, and keeps the ones asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excite.data.dataset import unit_floats
from excite.data.self_training.pseudo_labels import PseudoLabels
from excite.data.self_training.unlabelled import Unlabelled
from excite.errors import InputError
from excite.quantities import OnProgress

Answer = Callable[[Tensor], Tensor]  # images in [0, 1] -> logits; a model in eval mode, or a faster twin of it


@dataclass(frozen=True, eq=False)
class Labelling:
    """Pseudo-labels and what they were chosen from; how many of them agree with the truth, where it is known."""

    kept: PseudoLabels
    candidates: int
    num_classes: int
    agreeing: int | None

    @property
    def per_class(self) -> list[int]:
        return self.kept.labels.bincount(minlength=self.num_classes).tolist()

    @property
    def mean_confidence(self) -> float:
        return float(self.kept.confidences.double().mean())

    @property
    def agreement(self) -> float | None:
        return None if self.agreeing is None else self.agreeing / len(self.kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.kept.source,
            "candidates": self.candidates,
            "kept": len(self.kept),
            "per_class": self.per_class,
            "mean_confidence": self.mean_confidence,
            "hidden_label_accuracy": self.agreement,
        }

    def __str__(self) -> str:
        lines = [
            f"{Path(self.kept.source).name}: {len(self.kept):,} of {self.candidates:,} images kept, "
            f"mean confidence {self.mean_confidence:.2%}",
            f"per class: {', '.join(f'{amount:,}' for amount in self.per_class)}",
        ]
        if self.agreeing is not None:
            from scipy.stats import binomtest  # slow to import

            low, high = binomtest(self.agreeing, len(self.kept)).proportion_ci(method="wilson")
            lines.append(
                f"diagnostic only: {self.agreement:.2%} ({100 * low:.2f} to {100 * high:.2f}) of them agree with the "
                "labels that training never sees"
            )
        return "\n".join(lines)


def check_shape(unlabelled: Unlabelled, trained_on: tuple[int, ...]) -> None:
    if unlabelled.images.shape[1:] != trained_on:
        ours, theirs = ("×".join(map(str, shape)) for shape in (trained_on, unlabelled.images.shape[1:]))
        raise InputError(
            f"The model takes images of {ours}; those of {unlabelled.name} are {theirs}. Convert them first."
        )


def pseudo_label(
    answer: Answer,
    unlabelled: Unlabelled,
    *,
    source: str,
    teacher: Mapping[str, Any],
    threshold: float = 0.0,
    balance: bool = False,
    batch_size: int = 128,
    on_progress: OnProgress = lambda _done, _total: None,
) -> Labelling:
    """Label every image, then keep those that `choose` does."""
    labels, confidences, num_classes = predict(
        answer, unlabelled.images, batch_size=batch_size, on_progress=on_progress
    )
    indices = choose(labels, confidences, num_classes=num_classes, threshold=threshold, balance=balance)
    kept = PseudoLabels(
        indices=indices,
        labels=labels[indices],
        confidences=confidences[indices],
        source=source,
        fingerprint=unlabelled.fingerprint(),
        teacher={**teacher, "threshold": threshold, "balance": balance},
    )
    agreeing = None
    if unlabelled.labels is not None:
        agreeing = int((kept.labels == unlabelled.labels[indices]).sum())
    return Labelling(kept, len(unlabelled), num_classes, agreeing)


def predict(
    answer: Answer,
    images: Tensor,
    *,
    batch_size: int = 128,
    on_progress: OnProgress = lambda _done, _total: None,
) -> tuple[Tensor, Tensor, int]:
    """The likeliest class of each uint8 image, the probability that the answer gives it, and the number of classes."""
    answers = []
    with torch.no_grad():
        for chunk in torch.split(images, batch_size):
            logits = answer(unit_floats(chunk)).cpu()
            if not bool(logits.isfinite().all()):
                raise InputError("The teacher answers with numbers that are not finite. Train it at a lower rate.")
            answers.append(torch.max(logits.softmax(1), dim=1))
            on_progress(min(len(answers) * batch_size, len(images)), len(images))
    labels = torch.cat([best.indices for best in answers])
    return labels, torch.cat([best.values for best in answers]), logits.shape[1]


def choose(
    labels: Tensor, confidences: Tensor, *, num_classes: int, threshold: float = 0.0, balance: bool = False
) -> Tensor:
    """Which images to keep, in ascending order: those at or above `threshold`.

    With `balance` the same number of each class, its most confident ones: as many as the rarest class has.

    >>> choose(torch.tensor([0, 0, 1]), torch.tensor([0.7, 0.9, 0.8]), num_classes=2, balance=True)
    tensor([1, 2])
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"A confidence lies between 0 and 1; the threshold is {threshold}.")
    sure = torch.where(confidences >= threshold)[0]
    if len(sure) == 0:
        raise InputError(
            f"No image has a confidence of {threshold} or more; the largest is {float(confidences.max()):.4f}. "
            "Lower the threshold, or train the teacher longer."
        )
    if not balance:
        return sure
    per_class = labels[sure].bincount(minlength=num_classes)
    if not per_class.min():
        raise InputError(
            f"No image is left in class {int(per_class.argmin())}, so that balanced classes would all be empty. "
            "Lower the threshold, leave out the balance, or train the teacher longer."
        )
    most_sure_first = sure[confidences[sure].argsort(descending=True, stable=True)]
    chosen = [most_sure_first[labels[most_sure_first] == label][: per_class.min()] for label in range(num_classes)]
    return torch.cat(chosen).sort().values
