"""Attack any trained model: an arm of a run, or a stranger's weights, with attacks named on the spot."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excite import data, models
from excite.attacks import ATTACKS, Attack
from excite.data import Split
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation, evaluate
from excite.registry import build, lookup
from excite.runs.assemble import usable_device
from excite.runs.procedure import Console, Run


@dataclass(frozen=True)
class Target:
    """A trained model, the images to attack it on, and the folder that keeps the verdicts."""

    model: nn.Module
    images: Split
    folder: Path


def arm_of_run(run: Run, arm: str) -> Target:
    trained = run.files.arm(arm)
    return Target(trained.load_into(run.parts.new_model()).eval(), run.parts.test, trained.path)


def stranger(model: str, weights: Path, *, data_name: str, device: str | None, folder: Path) -> Target:
    """A model by `package.module:factory`, or by a name of ours, with its weights from a file."""
    dataset = data.load(data_name)
    if ":" in model:
        built = _from_factory(model)
    else:
        built = models.create(model, num_classes=dataset.num_classes, input_shape=dataset.input_shape)
    state = _read_weights(weights)
    try:
        built.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"{weights} does not fit {model}: {error}") from error
    return Target(built.to(usable_device(device)).eval(), dataset.test, folder)


def named_attacks(names: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Attack]:
    """Each named attack with those of the options that it takes; a PGD step not given is 2.5 ε / steps."""
    given = {option: value for option, value in options.items() if value is not None}
    chosen: dict[str, Attack] = {}
    taken: set[str] = set()
    for name in names:
        parameters = inspect.signature(lookup("attack", ATTACKS, name)).parameters
        own = {option: value for option, value in given.items() if option in parameters}
        taken |= own.keys()
        if "step" in parameters and "eps" in own:
            own.setdefault("step", 2.5 * own["eps"] / own.get("steps", parameters["steps"].default))
        chosen[name] = build("attack", ATTACKS, name, own)
    if ignored := given.keys() - taken:
        raise InputError(f"None of {', '.join(names)} takes {', '.join(sorted(ignored))}; leave it out.")
    return chosen


def attack_target(
    target: Target,
    attacks: Mapping[str, Attack],
    *,
    console: Console,
    examples: int | None = None,
    subset_seed: int = 0,
    resume: bool = False,
    batch_size: int = 128,
) -> Evaluation:
    """Evaluate, save the outcome as attack-<names>.json in the target's folder; `resume` goes on from a stopped one."""
    images = target.images if examples is None else target.images.subset(examples, subset_seed)
    stem = "attack-" + "-".join(attacks)
    journal = target.folder / f"{stem}.journal"
    if not resume:
        journal.unlink(missing_ok=True)
    target.folder.mkdir(parents=True, exist_ok=True)
    with console.task(f"{', '.join(map(str, attacks.values()))} on {len(images)} images") as progress:
        evaluation = evaluate(
            target.model,
            images.floats(),
            images.labels,
            attacks,
            seed=subset_seed,
            batch_size=batch_size,
            journal=journal,
            progress=lambda _, done, total: progress(done, total),
        )
    evaluation.save(target.folder / f"{stem}.json")
    journal.unlink(missing_ok=True)
    return evaluation


def _from_factory(path: str) -> nn.Module:
    module_name, _, factory_name = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        built = getattr(importlib.import_module(module_name), factory_name)()
    except (ImportError, AttributeError) as error:
        raise InputError(f"{path} cannot be imported ({error}); write package.module:factory.") from error
    finally:
        sys.path.pop(0)
    if not isinstance(built, nn.Module):
        raise InputError(f"{path} made a {type(built).__name__}, not a torch module.")
    return built


def _read_weights(path: Path) -> dict[str, Any]:
    """A state dict from .safetensors, or from .pt by torch's loader that runs no code."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: dict[str, Any] = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CorruptFileError(
            f"{path} cannot be read as weights ({error}). Save a state_dict, as .safetensors or with torch.save."
        ) from error
    ours = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    return ours or state.get("state_dict", state)
