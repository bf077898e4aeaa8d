"""What is measured after every epoch, for the curves; the table uses all test images and all attacks."""

from torch import nn

from excite.data.dataset import unit_floats
from excite.errors import InputError
from excite.evaluation import evaluate
from excite.randomness import device_of, undisturbed
from excite.runs.assemble import Parts


def check_recording(parts: Parts) -> None:
    """Refuse to record accuracies under an attack that the experiment does not have."""
    record = parts.experiment.record
    for name in ("attacked_examples", "best_every"):
        if getattr(record, name) and not parts.attacks:
            raise InputError(f"record.{name} needs an attack; name one under [attacks], or set it to 0.")


def epoch_accuracies(parts: Parts, model: nn.Module) -> dict[str, float]:
    """Accuracy on the first test images, and under the experiment's first attack if the experiment records that.

    The training does not notice: batch-norm statistics, modes and random generators are left as they were.
    """
    attacked = parts.experiment.record.attacked_examples
    first = dict(list(parts.attacks.items())[:1])
    device = next(model.parameters()).device
    images, labels = (
        unit_floats(parts.test.images[: parts.experiment.record.test_examples]).to(device),
        parts.test.labels.to(device),
    )
    with undisturbed(model, device):
        clean = evaluate(model, images, labels[: len(images)], {}, checks=False)
        measured = {"test_accuracy": clean.clean.value}
        if attacked:
            images = unit_floats(parts.test.images[:attacked]).to(device)
            seed = parts.experiment.seed
            robust = evaluate(model, images, labels[: len(images)], first, checks=False, seed=seed)
            measured["robust_accuracy"] = robust.worst.value
            measured["attacked_clean_accuracy"] = robust.clean.value  # of the same images
    return measured


def train_accuracy(parts: Parts, model: nn.Module) -> float:
    """Accuracy on the first images that it was trained on, as they are, without augmentation."""
    device = device_of(model)
    images = unit_floats(parts.train.images[: parts.experiment.record.test_examples]).to(device)
    with undisturbed(model, device):
        return evaluate(model, images, parts.train.labels[: len(images)].to(device), {}, checks=False).clean.value
