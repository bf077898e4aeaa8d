"""A few test images, what the first attack adds to them, and what each arm sees before and after."""

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from excite import data
from excite.attacks.protocol import AttackWarning
from excite.errors import DataUnavailableError, InputError
from excite.evaluation.batch import seeded
from excite.runs.assemble import Parts, assemble
from excite.runs.folder import RunFolder


@dataclass(frozen=True)
class Prediction:
    name: str
    confidence: float
    right: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.confidence:.0%})"


@dataclass(frozen=True)
class Attacked:
    """One image under attack against one arm; pictures are PNG data URIs."""

    arm: str
    perturbation: str
    picture: str
    before: Prediction
    after: Prediction


@dataclass(frozen=True)
class Example:
    number: int  # of the run's test images, from 0
    name: str  # what it truly shows
    picture: str
    attacked: tuple[Attacked, ...]


@dataclass(frozen=True)
class Examples:
    attack: str
    chosen: str  # how the images were chosen
    largest: float  # the largest change of a pixel, which the perturbation's pictures show as black or white
    examples: tuple[Example, ...]
    arms: tuple[str, ...]  # folders of the checkpoints

    @property
    def magnification(self) -> float:
        return 0.5 / self.largest if self.largest else 1.0


def attacked_examples(results: RunFolder, *, count: int = 4) -> Examples:
    """Attack `count` test images against every arm that has a checkpoint, on the processor, from the run's seed.

    Of a cascade the first attack is taken. Raises an error that says why where checkpoints or data are not there.
    """
    arms = [arm for arm in results.arms if not arm.problem and arm.has_checkpoint]
    if not arms:
        raise InputError("The run folder holds no checkpoint, so that no image can be attacked again for this page.")
    if not results.experiment.attacks:
        raise InputError("The experiment names no attack.")
    parts = _parts(results)
    name, attack = next(iter(parts.attacks.items()))
    stage, attack = attack.stages[0]
    numbers, chosen = _choose(results, len(parts.test), count)
    x, y = parts.test.floats()[numbers], parts.test.labels[numbers]
    moved, before, after = {}, {}, {}
    for arm in arms:
        model = arm.load_into(parts.new_model()).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttackWarning)  # the evaluation has noted it
            moved[arm.name] = attack(model, x, y, seeded(results.experiment.seed, "page", name)).detach()
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
    return Examples(attack_name, chosen, largest, examples, tuple(arm.name for arm in arms))


def png(image: Tensor) -> str:
    """Values in [0, 1], C×H×W with one or three channels, as a PNG data URI: lossless but for rounding to 8 bits."""
    from PIL import Image

    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = levels[0] if len(levels) == 1 else levels.permute(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _parts(results: RunFolder) -> Parts:
    """Everything the experiment names, but nothing is fetched for a page."""
    name = results.experiment.data.name
    present = {status.name: status.present for status in data.listing()}
    if not present.get(name, True):
        raise DataUnavailableError(
            f"The data set {name} is not on this machine. `excite data fetch {name}` fetches it."
        )
    return assemble(results.experiment, device="cpu")


def _choose(results: RunFolder, total: int, count: int) -> tuple[Tensor, str]:
    """Images at random, among those that every evaluated arm gets right unless there are too few."""
    evaluations = [arm.evaluation for arm in results.arms if arm.evaluation and len(arm.evaluation.correct) == total]
    right = torch.stack([torch.ones(total, dtype=torch.bool), *(found.correct for found in evaluations)]).all(0)
    among = right.nonzero().squeeze(1)
    words = f"the {len(among):,} that every arm gets right before the attack" if evaluations else f"{total:,}"
    if len(among) < count:
        among, words = torch.arange(total), f"{total:,}"
    order = torch.randperm(len(among), generator=seeded(results.experiment.seed, "page"))
    return among[order[:count]].sort().values, f"drawn at random (seed {results.experiment.seed}) from {words}"


def _probabilities(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).softmax(1)  # type: ignore[no-any-return]


def _prediction(probabilities: Tensor, truth: int, names: Sequence[str]) -> Prediction:
    best = int(probabilities.argmax())
    return Prediction(names[best], float(probabilities[best]), best == truth)
