"""The weights that stood best in the course of a training, by the first attack on images that were held out."""

import math

from torch import nn

from excite.evaluation import evaluate
from excite.randomness import device_of, undisturbed
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder
from excite.training import checkpoints

MEASURED = "held_out_accuracy"


def keep_best(parts: Parts, arm: ArmFolder, model: nn.Module) -> dict[str, float]:
    """Look at the model every few epochs, and keep its weights if none before stood better; training does not notice.

    What came before is read from the epochs written down, so a training that goes on after a stop keeps the same ones.
    """
    every, held_out = parts.experiment.record.best_every, parts.held_out
    before = ArmFolder(arm.path).epochs
    epoch = len(before) + 1
    if held_out is None or (epoch % every and epoch != parts.experiment.training.epochs):
        return {}
    device = device_of(model)
    first = dict(list(parts.attacks.items())[:1])
    with undisturbed(model, device):
        images, labels = held_out.floats().to(device), held_out.labels.to(device)
        found = evaluate(model, images, labels, first, checks=False, seed=parts.experiment.seed).worst.value
    if found > max((past.extra.get(MEASURED, -math.inf) for past in before), default=-math.inf):
        weights = arm.best.path / f"weights-{epoch:04d}-000000.safetensors"
        checkpoints.save_model(weights, model, {"epoch": epoch, MEASURED: found})
    return {MEASURED: found}
