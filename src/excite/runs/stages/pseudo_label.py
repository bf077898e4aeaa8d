"""A trained model labels images that have no labels, says how sure it is of each, and keeps the ones asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from excite.attacks.fast_model import fast_inference
from excite.data.dataset import unit_floats
from excite.data.self_training.pseudo_labels import PseudoLabels
from excite.data.self_training.unlabelled import Unlabelled, load_unlabelled
from excite.errors import InputError
from excite.evaluation.accuracy import Accuracy
from excite.randomness import undisturbed

if TYPE_CHECKING:
    from excite.runs.procedure import Run


@dataclass(frozen=True, eq=False)
class Labelling:
    """Pseudo-labels and what they were chosen from; `accuracy` of the kept ones where the truth is known."""

    kept: PseudoLabels
    candidates: int
    num_classes: int
    accuracy: Accuracy | None

    @property
    def per_class(self) -> list[int]:
        return self.kept.labels.bincount(minlength=self.num_classes).tolist()

    @property
    def mean_confidence(self) -> float:
        return float(self.kept.confidences.double().mean())

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.kept.source,
            "candidates": self.candidates,
            "kept": len(self.kept),
            "per_class": self.per_class,
            "mean_confidence": self.mean_confidence,
            "hidden_label_accuracy": None if self.accuracy is None else self.accuracy.value,
        }

    def __str__(self) -> str:
        lines = [
            f"{Path(self.kept.source).name}: {len(self.kept):,} of {self.candidates:,} images kept, "
            f"mean confidence {self.mean_confidence:.2%}",
            f"per class: {', '.join(f'{amount:,}' for amount in self.per_class)}",
        ]
        if self.accuracy is not None:
            lines.append(f"diagnostic only: {self.accuracy} of them agree with the labels that training never sees")
        return "\n".join(lines)


def label_with_run(
    run: "Run", arm: str, source: str, out: Path, *, threshold: float = 0.0, balance: bool = False
) -> Labelling:
    """Label the images of `source` with a trained arm of a run, and write the pseudo-labels to `out`, an .npz file."""
    if out.suffix != ".npz":
        raise InputError(f"Pseudo-labels are an .npz file; {out} does not end so. Write --out {out}.npz.")
    trained = run.files.arm(arm)
    if not trained.trained or trained.problem:
        raise InputError(f"{run.folder} has no trained arm {arm}. Train it: excite train … --arm {arm}.")
    unlabelled = load_unlabelled(source)
    check_shape(unlabelled, run.parts.test.images.shape[1:])
    with run.console.task(f"labelling {len(unlabelled):,} images with {run.folder.name}/{arm}") as progress:
        labelling = pseudo_label(
            trained.load_into(run.parts.new_model()),
            unlabelled,
            source=source,
            teacher={"run": run.folder.name, "arm": arm, "experiment": run.experiment.to_json()},
            threshold=threshold,
            balance=balance,
            progress=progress,
        )
    labelling.kept.save(out)
    return labelling


def check_shape(unlabelled: Unlabelled, trained_on: tuple[int, ...]) -> None:
    if unlabelled.images.shape[1:] != trained_on:
        ours, theirs = ("×".join(map(str, shape)) for shape in (trained_on, unlabelled.images.shape[1:]))
        raise InputError(
            f"The model takes images of {ours}; those of {unlabelled.name} are {theirs}. Convert them first."
        )


def pseudo_label(
    model: nn.Module,
    unlabelled: Unlabelled,
    *,
    source: str,
    teacher: Mapping[str, Any],
    threshold: float = 0.0,
    balance: bool = False,
    batch_size: int = 128,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Labelling:
    """Label every image, then keep those that `choose` does."""
    labels, confidences, num_classes = predict(model, unlabelled.images, batch_size=batch_size, progress=progress)
    indices = choose(labels, confidences, num_classes=num_classes, threshold=threshold, balance=balance)
    kept = PseudoLabels(
        indices=indices,
        labels=labels[indices],
        confidences=confidences[indices],
        source=source,
        fingerprint=unlabelled.fingerprint(),
        teacher={**teacher, "threshold": threshold, "balance": balance},
    )
    accuracy = None
    if unlabelled.labels is not None:
        right = labels[indices] == unlabelled.labels[indices]
        accuracy = Accuracy(int(right.sum()), len(indices))
    return Labelling(kept, len(unlabelled), num_classes, accuracy)


def predict(
    model: nn.Module,
    images: Tensor,
    *,
    batch_size: int = 128,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Tensor, Tensor, int]:
    """The likeliest class of each uint8 image, the probability that the model gives it, and the number of classes.

    The model answers in eval mode and is left as it was.
    """
    device = next(model.parameters()).device
    answers = []
    with undisturbed(model, device), torch.no_grad():
        answer = fast_inference(model.eval())
        for chunk in torch.split(images, batch_size):
            probabilities = answer(unit_floats(chunk.to(device))).softmax(1)
            answers.append(torch.max(probabilities, dim=1))
            progress(min(len(answers) * batch_size, len(images)), len(images))
    labels = torch.cat([best.indices for best in answers]).cpu()
    return labels, torch.cat([best.values for best in answers]).cpu(), probabilities.shape[1]


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
