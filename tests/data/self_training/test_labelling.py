import json

import numpy as np
import pytest
import torch
from torch import Tensor

from excite.data import Unlabelled
from excite.data.self_training.labelling import Labelling, choose, predict, pseudo_label
from excite.errors import InputError

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
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
    assert choose(LABELS, CONFIDENCES, num_classes=3, threshold=threshold, balance=balance).tolist() == kept


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
        (0.99, False, r"No image has a confidence of 0.99 or more; the largest is 0.9500. Lower the threshold"),
        (0.75, True, r"No image is left in class 1.*leave out the balance"),
        (1.5, False, r"between 0 and 1; the threshold is 1.5"),
    ],
)
def test_a_choice_that_keeps_nothing_is_refused(threshold: float, balance: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(LABELS, CONFIDENCES, num_classes=3, threshold=threshold, balance=balance)


@pytest.mark.parametrize("batch_size", [2, 100])
def test_a_label_is_the_likeliest_class_and_its_probability(batch_size: int) -> None:
    seen: list[tuple[int, int]] = []
    labels, confidences, classes = predict(
        brightness, grey(0, 255, 128, 30, 200), batch_size=batch_size, on_progress=lambda *at: seen.append(at)
    )
    assert labels.tolist() == [0, 1, 1, 0, 1]
    assert classes == 2
    assert confidences[0] == pytest.approx(1 / (1 + np.exp(-8)), rel=1e-4)
    assert confidences[0] > confidences[3] > confidences[4] > confidences[2]
    assert seen[-1] == (5, 5)


def test_answers_that_are_no_numbers_label_nothing() -> None:
    with pytest.raises(InputError, match=r"not finite. Train it at a lower rate"):
        predict(lambda x: brightness(x) * float("nan"), grey(0, 255))


def label(labels: Tensor | None = None, threshold: float = 0.0) -> Labelling:
    images = Unlabelled("mine.npz", grey(0, 255, 128, 30), labels)
    return pseudo_label(brightness, images, source="mine.npz", teacher={"run": "r"}, threshold=threshold)


def test_the_truth_only_judges_and_is_called_a_diagnostic() -> None:
    judged = label(torch.tensor([0, 1, 0, 1]))
    assert judged.kept.labels.tolist() == [0, 1, 1, 0]
    assert (judged.agreeing, judged.agreement) == (2, 0.5)
    assert "diagnostic only: 50.00% (15.00 to 85.00)" in str(judged)
    assert "4 of 4 images kept" in str(judged)
    assert "per class: 2, 2" in str(judged)
    unjudged = label(threshold=0.9)
    assert unjudged.agreement is None
    assert "diagnostic" not in str(unjudged)
    assert unjudged.to_json()["kept"] == len(unjudged.kept) == 3
    assert unjudged.to_json()["mean_confidence"] == pytest.approx(unjudged.kept.confidences.mean().item())
    assert unjudged.kept.teacher == {"run": "r", "threshold": 0.9, "balance": False}
    json.dumps(unjudged.to_json())
