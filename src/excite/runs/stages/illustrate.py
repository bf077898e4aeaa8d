"""Attack a few test images against every trained arm, for the page."""

import base64
import io
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from excite.attacks.protocol import AttackWarning
from excite.errors import InputError
from excite.randomness import seeded
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder, RunFolder
from excite.runs.records import Attacked, Example, Illustration, Prediction

N_EXAMPLES = 4


def shown_arms(run: RunFolder) -> list[ArmFolder]:
    return [arm for arm in run.arms if not arm.problem and arm.has_checkpoint]


def attacked_examples(parts: Parts, run: RunFolder, *, count: int = N_EXAMPLES) -> Illustration:
    """Attack `count` test images against every arm that has weights, with the first attack of the experiment."""
    arms = shown_arms(run)
    if not arms:
        raise InputError("The run folder holds no checkpoint; train an arm first.")
    if not parts.attacks:
        raise InputError("The experiment names no attack; name one under [attacks].")
    name, attack = next(iter(parts.attacks.items()))
    stage, attack = attack.stages[0]  # of a cascade, its first attack
    numbers, chosen = choose(run, len(parts.test), count)
    x, y = parts.test.floats()[numbers], parts.test.labels[numbers]
    moved, before, after = {}, {}, {}
    for arm in arms:
        model = arm.load_into(parts.new_model()).cpu().eval()  # on the CPU, for the same images on every machine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttackWarning)  # the evaluation has recorded it
            generator = seeded(run.experiment.seed, "page", name)
            moved[arm.name] = attack(model, x, y, generator).detach()
        before[arm.name], after[arm.name] = _probabilities(model, x), _probabilities(model, moved[arm.name])
    largest = max(float((x_adv - x).abs().max()) for x_adv in moved.values())
    classes = parts.class_names
    examples = tuple(
        Example(
            number=int(numbers[i]),
            name=classes[int(y[i])],
            picture=png(x[i]),
            attacked=tuple(
                Attacked(
                    arm=arm.title,
                    perturbation=png(0.5 + (moved[arm.name][i] - x[i]) * (0.5 / (largest or 1.0))),
                    picture=png(moved[arm.name][i]),
                    before=_prediction(before[arm.name][i], int(y[i]), classes),
                    after=_prediction(after[arm.name][i], int(y[i]), classes),
                )
                for arm in arms
            ),
        )
        for i in range(len(numbers))
    )
    attack_name = f"{name} ({stage})" if stage else name
    return Illustration(attack_name, chosen, largest, examples, tuple(arm.name for arm in arms))


def png(image: Tensor) -> str:
    """Encode a C×H×W image with values in [0, 1] and one or three channels as a PNG data URI, with 8 bits a pixel."""
    from PIL import Image

    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = levels[0] if len(levels) == 1 else levels.permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def choose(run: RunFolder, total: int, count: int) -> tuple[Tensor, str]:
    """Choose random images that every arm classifies correctly, first those that the attack fools in some arms only.

    Returns their numbers, and a description of the choice.
    """
    evaluations = [arm.evaluation for arm in shown_arms(run) if arm.evaluation]
    evaluations = [evaluation for evaluation in evaluations if len(evaluation.correct) == total]
    order = torch.randperm(total, generator=seeded(run.experiment.seed, "page")).numpy()
    drawn = f"drawn at random (seed {run.experiment.seed}) from"
    right = np.all([np.asarray(evaluation.correct) for evaluation in evaluations], axis=0)
    if not evaluations or right.sum() < count:
        return torch.as_tensor(np.sort(order[:count])), f"{drawn} {total:,}"
    first = next(iter(run.experiment.attacks))
    robust = np.array([np.asarray(evaluation.outcomes(first)) for evaluation in evaluations])
    differing = right & (robust.any(axis=0) != robust.all(axis=0))
    preferred = [*order[differing[order]], *order[(right & ~differing)[order]]][:count]
    words = f"the {int(right.sum()):,} that every arm classifies correctly before the attack"
    if differing.any():
        words += f", first those that the attack fools in some arms only ({int(differing.sum()):,})"
    return torch.as_tensor(sorted(int(number) for number in preferred)), f"{drawn} {words}"


def _probabilities(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).softmax(1)  # type: ignore[no-any-return]


def _prediction(probabilities: Tensor, truth: int, classes: Sequence[str]) -> Prediction:
    best = int(probabilities.argmax())
    return Prediction(classes[best], float(probabilities[best]), best == truth)
