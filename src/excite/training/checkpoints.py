"""Keep everything a run needs to go on as if it had never stopped."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from excite.errors import CorruptFileError, InputError
from excite.files import expected, read_json, sha256, write_bytes, write_json
from excite.randomness import device_of, restore_tensors, state_tensors
from excite.training.history import CHECKPOINT, WEIGHTS

EXTRA = "extra."  # what the names of further tensors begin with

_MALFORMED = (safetensors.SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, MemoryError)


def weights_file(folder: Path, epoch: int, step: int = 0) -> Path:
    return folder / WEIGHTS.replace("*", f"{epoch:04d}-{step:06d}")


def save(
    weights: Path,
    model: nn.Module,
    optimizer: Optimizer,
    facts: dict[str, Any],
    extra: Mapping[str, Tensor] = MappingProxyType({}),
    *,
    others: Sequence[Mapping[str, Tensor]] = (),
) -> None:
    """Write weights, optimizer and random state and `extra` to `weights`, then the JSON that makes them count.

    The weights of the checkpoint before stay until the new one counts. Where several processes train together, the
    first one saves, with the `own_state` of the `others` in the order of their ranks. A name in it that begins with
    `EXTRA` replaces that tensor of `extra` in its process.
    """
    optimizer_tensors, optimizer_facts = _split_optimizer(optimizer)
    groups = {
        "model": model.state_dict(),
        "optimizer": optimizer_tensors,
        "random": state_tensors(device_of(model)),
        "extra": extra,
    }
    groups |= {f"rank{rank}": state for rank, state in enumerate(others, start=1)}
    tensors = {
        f"{group}.{name}": _storable(tensor) for group, named in groups.items() for name, tensor in named.items()
    }
    _write(weights, tensors, {"optimizer": optimizer_facts} | facts)


def save_model(weights: Path, model: nn.Module, facts: dict[str, Any]) -> None:
    """Write the weights alone, for `load_model`, with `facts` about them."""
    _write(weights, {f"model.{name}": _storable(tensor) for name, tensor in model.state_dict().items()}, facts)


def _write(weights: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    write_bytes(weights, safetensors.torch.save(dict(tensors)))
    write_json(weights.parent / CHECKPOINT, {"weights": weights.name, "weights_sha256": sha256(weights)} | facts)
    _clear_all_but(weights)


def _clear_all_but(weights: Path) -> None:
    for stale in {*weights.parent.glob(WEIGHTS)} - {weights}:
        stale.unlink(missing_ok=True)


def restore(
    folder: Path, model: nn.Module, optimizer: Optimizer, *, rank: int = 0
) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Put model, optimizer and random state back as saved; return facts and extra, or None where nothing was saved.

    A `rank` that was not there when the checkpoint was saved keeps the random state it has.
    """
    if not (folder / CHECKPOINT).exists():
        return None
    facts, tensors = _read(folder)
    if rank == 0:
        _clear_all_but(folder / facts["weights"])  # of a process that was killed before it could
    _load_model(model, tensors, folder)
    own = _with_prefix(tensors, f"rank{rank}." if rank else "")
    try:
        _join_optimizer(optimizer, _with_prefix(tensors, "optimizer."), facts["optimizer"])
        restore_tensors(_with_prefix(own, "random."), device_of(model))
        with torch.no_grad():
            for name, value in _with_prefix(own, "buffer.").items():
                model.get_buffer(name).copy_(value)
    except _MALFORMED as error:
        raise CorruptFileError(
            f"The checkpoint in {folder} does not hold what this training needs ({error}). Use the optimizer it was "
            f"saved with, or delete {folder} to train again from the start."
        ) from error
    return facts, _with_prefix(tensors, EXTRA) | _with_prefix(own, EXTRA)


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What is known of the last saved weights, without them; None where nothing was saved."""
    return read_json(folder / CHECKPOINT) if (folder / CHECKPOINT).exists() else None


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """What every process has for itself: its random state, and its buffers, such as batch-norm statistics."""
    random = {f"random.{name}": state for name, state in state_tensors(device_of(model)).items()}
    return random | {f"buffer.{name}": buffer.cpu() for name, buffer in model.named_buffers()}


def load_model(folder: Path, model: nn.Module) -> nn.Module:
    """Put the last saved weights of a run folder into `model`."""
    if not (folder / CHECKPOINT).exists():
        raise InputError(f"{folder} holds no checkpoint. Train there first, or name the folder of a trained model.")
    _, tensors = _read(folder)
    _load_model(model, tensors, folder)
    return model


def check(folder: Path) -> None:
    """Raise where the last saved weights are not those that were written."""
    if not (folder / CHECKPOINT).exists():
        raise CorruptFileError(f"{folder} holds weights, but no {CHECKPOINT}. Put it back, or delete the folder.")
    _read(folder)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    facts = read_json(folder / CHECKPOINT)
    with expected(folder / CHECKPOINT):
        weights, hashed = folder / facts["weights"], facts["weights_sha256"]
        if weights.resolve().parent != folder.resolve():
            raise ValueError(f"the weights are {facts['weights']!r}, not a file beside it")
    content = weights.read_bytes() if weights.exists() else b""
    if hashlib.sha256(content).hexdigest() != hashed:
        raise CorruptFileError(
            f"{weights} is missing or does not match the SHA-256 in {CHECKPOINT}. "
            f"Put the original file back, or delete {folder} to train again from the start."
        )
    try:
        # Not by `load_file`: torch takes a Ctrl-C that reaches it there for tensors that have no shape.
        return facts, safetensors.torch.load(content)
    except _MALFORMED as error:
        raise CorruptFileError(
            f"{weights} is no file of tensors ({error}). Delete {folder} to train again from the start."
        ) from error


def _load_model(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    weights = _with_prefix(tensors, "model.")
    if broken := [name for name, tensor in weights.items() if bool(tensor.isnan().any())]:
        raise CorruptFileError(f"{broken[0]} in the checkpoint of {folder} is not a number. Delete it to train again.")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"The checkpoint in {folder} belongs to another model: {error}") from error


def _split_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
            else:
                scalars[f"{index}.{key}"] = value
    return tensors, {"scalars": scalars, "param_groups": [_numbers(group) for group in state["param_groups"]]}


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group for a JSON file: a rate may be a tensor."""
    return {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}


def _like(value: Any, own: object) -> Any:
    return torch.as_tensor(value, dtype=own.dtype, device=own.device) if isinstance(own, Tensor) else value


def _join_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **facts["scalars"]}.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    both = zip(facts["param_groups"], optimizer.param_groups, strict=True)
    groups = [{key: _like(value, own.get(key)) for key, value in saved.items()} for saved, own in both]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _storable(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)  # tied weights share memory otherwise
