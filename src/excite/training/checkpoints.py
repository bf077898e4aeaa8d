"""Save everything a training needs to resume bit-identically, and refuse to resume a different training."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from excite.data.augment import Augmentation, none
from excite.errors import CorruptFileError, InputError
from excite.files import expected, read_json, sha256, write_bytes, write_json
from excite.objectives import Objective
from excite.randomness import device_of, restore_tensors, state_tensors
from excite.training import CHECKPOINT, WEIGHTS

EXTRA = "extra."  # prefix of the names of extra tensors
COMPARED = ("momentum", "dampening", "weight_decay", "nesterov", "betas", "eps", "amsgrad")  # options of optimizers
LOCAL = "<"  # in the names of lambdas and local functions, which do not identify them


def weights_file(folder: Path, epoch: int, step: int = 0) -> Path:
    return folder / WEIGHTS.replace("*", f"{epoch:04d}-{step:06d}")


def save(
    weights: Path,
    model: nn.Module,
    optimizer: Optimizer | None,
    facts: dict[str, Any],
    extra: Mapping[str, Tensor] = MappingProxyType({}),
    *,
    others: Sequence[Mapping[str, Tensor]] = (),
) -> None:
    """Write weights, optimizer, random state and `extra` to `weights`, then the JSON file that makes them valid.

    Without an optimizer, only the weights are written. If several processes train together, the first one saves, with
    the `own_state` of the `others`. A name in such a state that begins with `EXTRA` replaces that tensor of `extra`.
    """
    groups: dict[str, Mapping[str, Tensor]] = {"model": model.state_dict()}
    if optimizer is not None:
        groups["optimizer"], optimizer_facts = _split_optimizer(optimizer)
        groups |= {"random": state_tensors(device_of(model)), "extra": extra}
        groups |= {f"rank{rank}": state for rank, state in enumerate(others, start=1)}
        facts = {"optimizer": optimizer_facts} | facts
    tensors = {  # copies, because tied weights share memory
        f"{group}.{name}": tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for group, named in groups.items()
        for name, tensor in named.items()
    }
    write_bytes(weights, safetensors.torch.save(tensors))
    write_json(weights.parent / CHECKPOINT, {"weights": weights.name, "weights_sha256": sha256(weights)} | facts)
    _remove_other_weights(weights)  # not before the new checkpoint is valid


def _remove_other_weights(weights: Path) -> None:
    for stale in {*weights.parent.glob(WEIGHTS)} - {weights}:
        stale.unlink(missing_ok=True)


def restore(
    folder: Path, model: nn.Module, optimizer: Optimizer, *, rank: int = 0
) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Restore model, optimizer and random state; return the facts and extra tensors, or None without a checkpoint.

    A `rank` that did not exist when the checkpoint was saved keeps its random state.
    """
    if not (folder / CHECKPOINT).exists():
        return None
    facts, tensors = _read(folder)
    if rank == 0:
        _remove_other_weights(folder / facts["weights"])  # left by a killed process
    _load_model(model, tensors, folder)
    _join_optimizer(optimizer, with_prefix(tensors, "optimizer."), facts["optimizer"])
    of_rank = with_prefix(tensors, f"rank{rank}." if rank else "")
    restore_tensors(with_prefix(of_rank, "random."), device_of(model))
    with torch.no_grad():
        for name, value in with_prefix(of_rank, "buffer.").items():
            model.get_buffer(name).copy_(value)
    return facts, with_prefix(tensors, EXTRA) | with_prefix(of_rank, EXTRA)


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """Return what differs between processes: random state and buffers, such as batch-norm statistics."""
    random = {f"random.{name}": state for name, state in state_tensors(device_of(model)).items()}
    return random | {f"buffer.{name}": buffer.cpu() for name, buffer in model.named_buffers()}


def load_model(folder: Path, model: nn.Module) -> nn.Module:
    """Load the last saved weights of a folder into `model`."""
    if not (folder / CHECKPOINT).exists():
        raise InputError(f"{folder} holds no checkpoint. Train there first, or name the folder of a trained model.")
    _, tensors = _read(folder)
    _load_model(model, tensors, folder)
    return model


def check(folder: Path) -> None:
    """Raise CorruptFileError if the last saved weights are damaged."""
    if not (folder / CHECKPOINT).exists():
        raise CorruptFileError(f"{folder} holds weights, but no {CHECKPOINT}. Put it back, or delete the folder.")
    _read(folder)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    facts = read_json(folder / CHECKPOINT)
    with expected(folder / CHECKPOINT):
        weights, hashed = folder / facts["weights"], facts["weights_sha256"]
        if weights.resolve().parent != folder.resolve():
            raise ValueError(f"the weights are {facts['weights']!r}, not a file in the same folder")
    content = weights.read_bytes() if weights.exists() else b""
    if hashlib.sha256(content).hexdigest() != hashed:
        raise CorruptFileError(
            f"{weights} is missing or does not match the SHA-256 in {CHECKPOINT}. "
            f"Put the original file back, or delete {folder} to train again from the start."
        )
    return facts, safetensors.torch.load(content)  # `load_file` would turn a Ctrl-C into another error


def _load_model(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    try:
        model.load_state_dict(with_prefix(tensors, "model."))
    except RuntimeError as error:
        raise InputError(f"The checkpoint in {folder} belongs to another model: {error}") from error


def _split_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    state = optimizer.state_dict()
    entries = {f"{index}.{key}": value for index, named in state["state"].items() for key, value in named.items()}
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    scalars = {name: value for name, value in entries.items() if name not in tensors}
    return tensors, {"scalars": scalars, "param_groups": state["param_groups"]}


def _join_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **facts["scalars"]}.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": facts["param_groups"]})


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


Identity = dict[str, Any]  # plain values by name


def identity(
    objective: Objective, optimizer: Optimizer, *, augment: Augmentation = none, **settings: int | str
) -> Identity:
    """Return the values that must be the same when a training resumes, except for the rates.

    Lambdas and local functions are left out, because they have no name that identifies them.

    >>> from torch.optim import SGD
    >>> from excite.objectives import Trades
    >>> values = identity(Trades(beta=1.0), SGD(nn.Linear(2, 1).parameters(), lr=0.1), seed=25)
    >>> [values[name] for name in ("seed", "objective", "objective.beta", "optimizer", "optimizer.momentum")]
    [25, 'Trades', 1.0, 'SGD', 0]
    """
    values: Identity = {**settings, "optimizer": type(optimizer).__name__}
    values |= {f"optimizer.{name}": _of_groups(name, optimizer) for name in COMPARED if name in optimizer.defaults}
    given: object = objective
    if is_dataclass(given):
        values["objective"] = type(given).__name__
        values |= {f"objective.{field.name}": getattr(given, field.name) for field in fields(given)}
    else:
        values["objective"] = getattr(given, "__qualname__", LOCAL)
    values["augment"] = getattr(augment, "__qualname__", LOCAL)
    named = {name: value for name, value in values.items() if LOCAL not in str(value)}
    plain: Identity = json.loads(json.dumps(named, default=str))  # as a checkpoint will return them
    return plain


def _of_groups(name: str, optimizer: Optimizer) -> Any:
    """The value of an option, or a list of one value per parameter group if they differ."""
    values = [group.get(name) for group in optimizer.param_groups]
    return values[0] if all(value == values[0] for value in values) else values


def check_same(folder: Path, now: Identity, *, epochs: int, rate_of: Callable[[int], float] | None) -> None:
    """Refuse to resume the training in `folder` as a different one, or with fewer epochs than it has begun.

    `rate_of` is the schedule; epochs that have not begun may have any rate.
    """
    if not (folder / CHECKPOINT).exists():
        return
    facts = read_json(folder / CHECKPOINT)
    with expected(folder / CHECKPOINT):
        saved, rates = facts["identity"], facts["rates"]
        different = [
            f"{name} was {saved[name]!r}, is {value!r}"
            for name, value in now.items()
            if name in saved and value != saved[name]
        ]
        if rate_of:
            changed = [i for i, rate in enumerate(rates) if not math.isclose(rate, rate_of(i), rel_tol=1e-6)]
            different += [f"rate of epoch {i + 1} was {rates[i]!r}, is {rate_of(i)!r}" for i in changed[:1]]
    if len(rates) > epochs:
        different.append(f"it has begun epoch {len(rates)}, more than epochs={epochs}")
    if different:
        raise InputError(
            f"{folder} holds another training: {'; '.join(different)}. Use the same settings (epochs={len(rates)} or "
            f"more), train in another folder, or delete {folder} to train again from the start."
        )
