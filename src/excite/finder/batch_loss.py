"""The loss of a batch, whatever the loader yields: tuples, dicts, tensors."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from excite.errors import InputError

LossFunction = Callable[[Any, Any], Tensor]
TARGETS = ("labels", "label", "targets", "target", "y")


def batch_loss(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Tensor:
    """`loss_fn(model(inputs), target)`, inputs and target told apart by the kind of batch.

    - a tuple or list: the last is the target, the others are the inputs in their order;
    - a dict: "labels" (or "label", "targets", "target", "y") is the target. A model that takes it by this name, as
      those of Hugging Face do, computes the loss itself; else what is left goes in by name, or alone if it is one;
    - a tensor: its own target.
    """
    match batch:
        case Tensor():
            return loss_fn(model(batch), batch)
        case (_, *_, target):
            return loss_fn(model(*batch[:-1]), target)
        case Mapping():
            return _dict_loss(model, batch, loss_fn)
    raise InputError(
        f"A batch of type {type(batch).__name__} is not understood; pass step=lambda model, batch: … that returns the "
        "loss."
    )


def _dict_loss(model: nn.Module, batch: Mapping[str, Any], loss_fn: LossFunction) -> Tensor:
    name = next((name for name in TARGETS if name in batch), None)
    if name is None:
        raise InputError(
            f"None of the batch's entries {', '.join(map(str, batch))} is called {', '.join(TARGETS)}; "
            "pass step=lambda model, batch: … that returns the loss."
        )
    if _takes(model, name):
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise InputError(
                f'The model takes "{name}" but its answer has no .loss; pass step=lambda model, batch: … that returns '
                "the loss."
            )
        return loss  # type: ignore[no-any-return]
    inputs = {key: value for key, value in batch.items() if key != name}
    output = model(*inputs.values()) if len(inputs) == 1 else model(**inputs)
    return loss_fn(getattr(output, "logits", output), batch[name])


def _takes(model: nn.Module, name: str) -> bool:
    if type(model).__module__.startswith("torch."):  # its wrappers take anything and hand it on
        for inner in ("_orig_mod", "module"):
            if hasattr(model, inner):
                return _takes(getattr(model, inner), name)
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it on `device`."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
