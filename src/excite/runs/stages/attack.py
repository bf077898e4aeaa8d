"""Attack trained models: an arm of a run, a user's own model with its weights from a file, and a few images to show."""

import base64
import hashlib
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from excite import data, models
from excite.attacks import Attack
from excite.attacks.protocol import AttackWarning
from excite.attacks.saving import as_picture
from excite.console import Speaker
from excite.data import Split
from excite.data.catalog import load_once
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation, Shards, evaluate
from excite.excitation import FEWEST_MOMENTS, expected_acuteness, smoothness
from excite.excitation import certify as certify_path
from excite.execution import UNSHARED
from excite.precision import Precision
from excite.randomness import seeded, usable_device
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder, RunFolder
from excite.runs.records import Attacked, Certified, Example, Illustration, Prediction

if TYPE_CHECKING:
    from excite.runs.procedure import Run

PREFIXES = ("module.", "_orig_mod.", "model.")  # added by DDP, torch.compile, checkpoints of ours and Lightning's


def certify(arm: ArmFolder) -> None:
    """Write the arm's certificate, if it has one."""
    if certificate := certificate_of(arm):
        certificate.save(arm.certificate_file)


def certificate_of(arm: ArmFolder) -> Certified | None:
    """Compute the arm's certificate from its trace, unless it diverged or has fewer than three epochs."""
    trace = arm.trace()
    if trace is None or len(trace) < FEWEST_MOMENTS:
        return None
    path, slopes = certify_path(trace), smoothness(trace, math.inf)
    excitation = path.excitation
    expected = expected_acuteness(trace) if trace.batch_statistics.size else None
    return Certified(
        steps=len(path.spans),
        certified=int(path.certified.sum()),
        acute=int(path.angles.holds.sum()),
        slopes=slopes.slopes,
        largest_slope=slopes.largest if slopes.slopes else None,
        slowest=excitation.smallest if excitation else None,
        fastest=excitation.largest if excitation else None,
        mean_rate=excitation.mean_rate if excitation else None,
        conclusion=" ".join(map(str, filter(None, (path, expected)))),
        acute_in_expectation=int(expected.holds.sum()) if expected else None,
        batch_size_for_half=expected.batch_size_for(0.5) if expected else None,
    )


def attack_arm(run: "Run", arm: ArmFolder, shards: Shards = UNSHARED) -> None:
    """Evaluate the arm under the experiment's attacks and write the result into its folder."""
    parts, experiment = run.parts, run.experiment
    title = f"{arm.name}: {', '.join(parts.attacks)}"
    options = {"batch_size": experiment.attack_batch, "precision": experiment.attack_precision, **vars(shards)}
    target, file = target_of(parts, arm), arm.evaluation_file
    _evaluate(target, parts.attacks, file, run.console, title, seed=experiment.seed, **options)


@dataclass(frozen=True)
class Target:
    """A trained model, the images to attack it on, and the folder for the results."""

    model: nn.Module
    images: Split
    folder: Path
    name: str = ""  # distinguishes several models in one folder


def target_of(parts: Parts, arm: ArmFolder) -> Target:
    return Target(arm.load_into(parts.new_model()).eval(), parts.test, arm.path)


def own_model(model: str, weights: Path, *, data_name: str, device: str | None) -> Target:
    """Load a user's model: `package.module:factory`, or the name of a model of excite, with weights from a file.

    Results are written next to the weights.
    """
    dataset = data.load(data_name)
    built = models.create(model, num_classes=dataset.num_classes, input_shape=dataset.input_shape)
    state = _read_weights(weights)
    if "normalize.mean" in state.keys() - built.state_dict().keys():  # an export of excite
        built = models.normalized(
            built, (state["normalize.mean"].flatten().tolist(), state["normalize.std"].flatten().tolist())
        )
    try:
        built.load_state_dict(_without_prefix(state, built))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"{weights} does not fit {model}. Name the network that it was trained with ({reason})."
        ) from error
    return Target(built.to(usable_device(device)).eval(), dataset.test, weights.parent, weights.stem)


def attack_target(
    target: Target,
    attacks: Mapping[str, Attack],
    *,
    console: Speaker,
    examples: int | None = None,
    subset_seed: int = 0,
    batch_size: int = 128,
    precision: Precision = "float32",
    shards: Shards = UNSHARED,
) -> tuple[Evaluation, Path]:
    """Evaluate the target under `attacks`, on all images or on `examples` of them; return the result and its file."""
    if examples is not None:
        target = replace(target, images=target.images.subset(examples, subset_seed))
    facts = (sorted((name, repr(attack)) for name, attack in attacks.items()), examples, subset_seed, precision)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]  # makes a readable name unique
    file = target.folder / f"{'-'.join(filter(None, ['attack', target.name, *attacks, digest]))}.json"
    title = f"{', '.join(map(str, attacks.values()))} on {len(target.images)} images"
    options = {"seed": subset_seed, "batch_size": batch_size, "precision": precision, **vars(shards)}
    return _evaluate(target, attacks, file, console, title, **options), file


def _evaluate(
    target: Target, attacks: Mapping[str, Attack], file: Path, console: Speaker, title: str, **options: Any
) -> Evaluation:
    """Evaluate and save to `file`. An interrupted evaluation resumes from the journal beside the file."""
    journal, images = file.with_suffix(".journal"), target.images
    file.parent.mkdir(parents=True, exist_ok=True)
    with console.task(title) as on_progress:
        options |= {"journal": journal, "on_progress": on_progress}
        evaluation = evaluate(target.model, images.floats(), images.labels, attacks, **options)
    evaluation.save(file)
    journal.unlink(missing_ok=True)
    return evaluation


def _read_weights(path: Path) -> dict[str, Any]:
    """Read a state dict from .safetensors, or from .pt with the loader of torch that runs no code."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            state: Any = safetensors.torch.load(path.read_bytes())
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition(". ")[0].strip().removesuffix(".")
        raise CorruptFileError(
            f"Cannot read weights from {path} ({reason}). Save a state_dict as .safetensors or with torch.save."
        ) from error
    named = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named):
        raise CorruptFileError(f"{path} does not hold a state_dict, tensors by name. Save model.state_dict().")
    return named


def _without_prefix(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Keep only what has a wrapper's prefix, and remove the prefix, if the result fits the model."""
    for prefix in PREFIXES:
        stripped = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        if stripped.keys() == model.state_dict().keys():
            return stripped
    return state


def shown_arms(run: RunFolder) -> list[ArmFolder]:
    return [arm for arm in run.arms if not arm.problem and arm.has_checkpoint]


def illustrate(run: "Run", count: int = 4) -> None:
    """Store a few test images for the page, attacked against every arm that has weights, by the first attack."""
    parts, arms, seed = run.parts, shown_arms(run.files), run.experiment.seed
    name, attack = next(iter(parts.attacks.items()))
    stage, attack = attack.stages[0]  # of a cascade, its first attack
    numbers, chosen = choose(arms, len(parts.test), count, seed)
    images, labels = parts.test.floats()[numbers], parts.test.labels[numbers]
    classes = load_once(run.experiment.data.name).class_names
    models = [arm.load_into(parts.new_model()).cpu().eval() for arm in arms]  # the CPU gives the same everywhere
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttackWarning)  # the evaluation has recorded it
        moved = [attack(model, images, labels, seeded(seed, "page", name)).detach() for model in models]
    largest = max(float((of_arm - images).abs().max()) for of_arm in moved)

    def predict(model: nn.Module, image: Tensor, truth: int) -> Prediction:
        with torch.no_grad():
            probabilities = model(image[None]).softmax(1)[0]
        best = int(probabilities.argmax())
        return Prediction(classes[best], float(probabilities[best]), best == truth)

    examples = []
    for i, (image, truth) in enumerate(zip(images, labels.tolist(), strict=True)):
        attacked = tuple(
            Attacked(
                arm=arm.title,
                perturbation=png(0.5 + (of_arm[i] - image) * (0.5 / (largest or 1.0))),
                picture=png(of_arm[i]),
                before=predict(model, image, truth),
                after=predict(model, of_arm[i], truth),
            )
            for arm, model, of_arm in zip(arms, models, moved, strict=True)
        )
        examples.append(Example(numbers[i], classes[truth], png(image), attacked))
    title, names = f"{name} ({stage})" if stage else name, tuple(arm.name for arm in arms)
    Illustration(title, chosen, largest, tuple(examples), names).save(run.files.illustration_file)


def choose(arms: Sequence[ArmFolder], total: int, count: int, seed: int) -> tuple[list[int], str]:
    """Draw the numbers of images, first of those that every arm classifies correctly, and describe the choice."""
    evaluations = [arm.evaluation for arm in arms]
    right = np.all([np.ones(total, dtype=bool), *(known.correct for known in evaluations if known)], axis=0)
    order = torch.randperm(total, generator=seeded(seed, "page")).tolist()
    first = sorted(order, key=lambda number: not right[number])[:count]
    which = f"the {right.sum():,} of {total:,} that every arm classifies correctly before the attack"
    return sorted(first), f"drawn at random (seed {seed}), first from {which}"


def png(image: Tensor) -> str:
    """Encode a C×H×W image with values in [0, 1] and one or three channels as a PNG data URI, with 8 bits a pixel."""
    as_picture(image).save(file := io.BytesIO(), format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
