"""What a trained arm is worth: the theorem along its path, its accuracies, and a few attacked images for the page."""

import base64
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor, nn

from excite.attacks.protocol import AttackWarning
from excite.console import Speaker
from excite.errors import InputError
from excite.evaluation import Shards, evaluate
from excite.excitation import certify as certify_path
from excite.excitation.along_path import FEWEST_MOMENTS, smoothness
from excite.execution import UNSHARED
from excite.files import write_json
from excite.randomness import device_of, seeded
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder, RunFolder
from excite.runs.stored import Attacked, Certified, Example, Illustration, Prediction


def certify(arm: ArmFolder) -> None:
    """Leave it in the arm's folder; a training that diverged, or of fewer than three epochs, has none."""
    trace = arm.trace()
    if trace is None or len(trace) < FEWEST_MOMENTS:
        return
    path = certify_path(trace)
    slopes = smoothness(trace, math.inf)
    found = path.excitation
    certified = Certified(
        steps=len(path.spans),
        certified=int(path.certified.sum()),
        acute=int(path.angles.holds.sum()),
        slopes=slopes.slopes,
        largest_slope=slopes.largest if slopes.slopes else None,
        slowest=found.smallest if found else None,
        fastest=found.largest if found else None,
        mean_rate=found.mean_rate if found else None,
        conclusion=str(path),
    )
    write_json(arm.certificate_file, asdict(certified))


def attack(parts: Parts, arm: ArmFolder, console: Speaker, shards: Shards = UNSHARED) -> None:
    """Leave the evaluation in the arm's folder; one that was stopped goes on from its journal, shared or not."""
    model = arm.load_into(parts.new_model()).eval()
    device = device_of(model)
    with console.task(f"{arm.name}: {', '.join(parts.attacks)}") as progress:
        evaluation = evaluate(
            model,
            parts.test.floats().to(device),
            parts.test.labels.to(device),
            parts.attacks,
            seed=parts.experiment.seed,
            journal=arm.journal_file,
            on_progress=progress,
            **vars(shards),
        )
    evaluation.save(arm.evaluation_file)
    arm.journal_file.unlink(missing_ok=True)


SHOWN = 4


def illustrate(parts: Parts, run: RunFolder) -> None:
    """Leave the images in the folder."""
    write_json(run.illustration_file, asdict(attacked_examples(parts, run)))


def shown_arms(run: RunFolder) -> list[ArmFolder]:
    return [arm for arm in run.arms if not arm.problem and arm.has_checkpoint]


def attacked_examples(parts: Parts, results: RunFolder, *, count: int = SHOWN) -> Illustration:
    """Attack `count` test images against every arm that has a checkpoint, from the run's seed.

    Of a cascade the first attack is taken.
    """
    arms = shown_arms(results)
    if not arms:
        raise InputError("The run folder holds no checkpoint; train an arm first.")
    if not parts.attacks:
        raise InputError("The experiment names no attack; name one under [attacks].")
    name, attack = next(iter(parts.attacks.items()))
    stage, attack = attack.stages[0]
    numbers, chosen = choose(results, len(parts.test), count)
    x, y = parts.test.floats()[numbers], parts.test.labels[numbers]
    moved, before, after = {}, {}, {}
    for arm in arms:
        model = arm.load_into(parts.new_model()).cpu().eval()  # a few images; the same on every machine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttackWarning)  # the evaluation has noted it
            generator = seeded(results.experiment.seed, "page", name)
            moved[arm.name] = attack(model, x, y, generator).detach()
        before[arm.name], after[arm.name] = _probabilities(model, x), _probabilities(model, moved[arm.name])
    largest = max(float((x_adv - x).abs().max()) for x_adv in moved.values())
    names = parts.class_names
    examples = tuple(
        Example(
            number=int(numbers[i]),
            name=names[int(y[i])],
            picture=png(x[i]),
            attacked=tuple(
                Attacked(
                    arm=arm.title,
                    perturbation=png(0.5 + (moved[arm.name][i] - x[i]) * (0.5 / (largest or 1.0))),
                    picture=png(moved[arm.name][i]),
                    before=_prediction(before[arm.name][i], int(y[i]), names),
                    after=_prediction(after[arm.name][i], int(y[i]), names),
                )
                for arm in arms
            ),
        )
        for i in range(len(numbers))
    )
    attack_name = f"{name} ({stage})" if stage else name
    return Illustration(attack_name, chosen, largest, examples, tuple(arm.name for arm in arms))


def png(image: Tensor) -> str:
    """Values in [0, 1], C×H×W with one or three channels, as a PNG data URI: lossless but for rounding to 8 bits."""
    from PIL import Image

    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = levels[0] if len(levels) == 1 else levels.permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def choose(results: RunFolder, total: int, count: int) -> tuple[Tensor, str]:
    """Images at random: first those that the attack fools in some arms only, of those that every arm gets right."""
    evaluations = [arm.evaluation for arm in shown_arms(results) if arm.evaluation]
    evaluations = [found for found in evaluations if len(found.correct) == total]
    order = torch.randperm(total, generator=seeded(results.experiment.seed, "page")).numpy()
    drawn = f"drawn at random (seed {results.experiment.seed}) from"
    if not evaluations:
        return torch.as_tensor(np.sort(order[:count])), f"{drawn} {total:,}"
    right = np.all([np.asarray(found.correct) for found in evaluations], axis=0)
    if right.sum() < count:
        return torch.as_tensor(np.sort(order[:count])), f"{drawn} {total:,}"
    first = next(iter(results.experiment.attacks))
    standing = np.array([np.asarray(found.outcomes(first)) for found in evaluations])
    apart = right & (standing.any(axis=0) != standing.all(axis=0))
    preferred = [*order[apart[order]], *order[(right & ~apart)[order]]][:count]
    words = f"the {int(right.sum()):,} that every arm gets right before the attack"
    if apart.any():
        words += f", those first that withstand it in some arms only ({int(apart.sum()):,})"
    return torch.as_tensor(sorted(int(number) for number in preferred)), f"{drawn} {words}"


def _probabilities(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).softmax(1)  # type: ignore[no-any-return]


def _prediction(probabilities: Tensor, truth: int, names: Sequence[str]) -> Prediction:
    best = int(probabilities.argmax())
    return Prediction(names[best], float(probabilities[best]), best == truth)
