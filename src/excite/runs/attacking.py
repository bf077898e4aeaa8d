"""Attack any trained model: an arm of a run, or a stranger's weights, with attacks named on the spot."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from excite import data, models
from excite.attacks import Attack
from excite.console import Speaker
from excite.data import Split
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation, Shards, evaluate
from excite.execution import UNSHARED
from excite.runs.assemble import usable_device
from excite.runs.missing import needed_model
from excite.runs.procedure import Run

PREFIXES = ("module.", "_orig_mod.", "model.")  # of DDP, torch.compile, checkpoints of ours and Lightning's


@dataclass(frozen=True)
class Target:
    """A trained model, the images to attack it on, and the folder that keeps the verdicts under names of its own."""

    model: nn.Module
    images: Split
    folder: Path
    name: str = ""  # where a folder may hold several models


def arm_of_run(run: Run, arm: str) -> Target:
    trained = needed_model(run.files, arm)
    return Target(trained.load_into(run.parts.new_model()).eval(), run.parts.test, trained.path)


def stranger(model: str, weights: Path, *, data_name: str, device: str | None, folder: Path) -> Target:
    """A model by `package.module:factory`, or by a name of ours, with its weights from a file."""
    dataset = data.load(data_name)
    if ":" in model:
        built = _from_factory(model)
    else:
        built = models.create(model, num_classes=dataset.num_classes, input_shape=dataset.input_shape)
    try:
        built.load_state_dict(_fitting(_read_weights(weights), built))
    except RuntimeError as error:
        raise InputError(f"{weights} does not fit {model}: {error}") from error
    return Target(built.to(usable_device(device)).eval(), dataset.test, folder, weights.stem)


def attack_target(
    target: Target,
    attacks: Mapping[str, Attack],
    *,
    console: Speaker,
    examples: int | None = None,
    subset_seed: int = 0,
    batch_size: int = 128,
    shards: Shards = UNSHARED,
) -> Evaluation:
    """Evaluate and save the outcome in the target's folder, in a file of its own; goes on from where it was stopped."""
    images = target.images if examples is None else target.images.subset(examples, subset_seed)
    file = target.folder / f"{_stem(target.name, attacks, examples, subset_seed)}.json"
    journal = file.with_suffix(".journal")
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
            on_progress=progress,
            **vars(shards),
        )
    evaluation.save(file)
    journal.unlink(missing_ok=True)
    return evaluation


def _stem(target: str, attacks: Mapping[str, Attack], examples: int | None, subset_seed: int) -> str:
    """A file name for people, and a digest of what the name does not say: every option of every attack."""
    subset = "" if examples is None else f"{examples}-of-seed-{subset_seed}"
    digest = hashlib.sha256(repr(sorted((name, repr(attack)) for name, attack in attacks.items())).encode())
    return "-".join(filter(None, ["attack", target, *attacks, subset, digest.hexdigest()[:8]]))


def _from_factory(path: str) -> nn.Module:
    module_name, _, factory_name = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{path} cannot be imported ({error}); write package.module:factory.") from error
    finally:
        sys.path.pop(0)
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InputError(f"{path} is a {type(factory).__name__}; name a function that makes a torch module.")
    if needed := _arguments_without_default(factory):
        raise InputError(
            f"{path} needs {', '.join(needed)}, and nobody is there to give it: name a function without arguments, "
            f"for instance `def mine(): return {factory_name}(…)`."
        )
    try:
        built = factory()
    except Exception as error:
        raise InputError(f"{path}() failed: {error!r}. It has to make the model without help.") from error
    if not isinstance(built, nn.Module):
        raise InputError(f"{path} made a {type(built).__name__}, not a torch module.")
    return built


def _arguments_without_default(factory: Callable[..., object]) -> list[str]:
    return [
        name
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _read_weights(path: Path) -> dict[str, Any]:
    """A state dict from .safetensors, or from .pt by torch's loader that runs no code."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            state: dict[str, Any] = safetensors.torch.load(path.read_bytes())
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CorruptFileError(
            f"{path} cannot be read as weights ({error}). Save a state_dict, as .safetensors or with torch.save."
        ) from error
    if not isinstance(state, dict):
        raise CorruptFileError(f"{path} holds a {type(state).__name__}, not a state_dict: save model.state_dict().")
    weights: dict[str, Any] = state.get("state_dict", state)
    return weights


def _fitting(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """The weights without the prefix that a wrapper gave their names, where that makes them the model's."""
    for prefix in PREFIXES:
        own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        if own.keys() == model.state_dict().keys():
            return own
    return state
