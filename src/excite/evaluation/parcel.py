"""Model, examples and attacks on their way to another process: every tensor as safetensors, the structure pickled."""

import copy
import io
import pickle
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

from excite.errors import InputError
from excite.evaluation.batch import Judge, device_of

STRUCTURE = "structure"


def parcel(judge: Judge, pickler: type[pickle.Pickler] = pickle.Pickler) -> bytes:
    """All that a worker needs: the model as it is, in eval mode."""
    model = judge.model
    if device_of(model, judge.x).type != "cpu":
        model = copy.deepcopy(model).cpu()
    try:
        return pack((model, judge.x.cpu(), judge.y.cpu(), judge.attacks, judge.seed, judge.fast), pickler)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(
            f"The model or an attack cannot be sent to other processes ({error}). Define its class or function at the "
            "top of a module, or pass workers=1."
        ) from error


def opened(contents: bytes, device: str) -> Judge:
    try:
        model, x, y, attacks, seed, fast = unpack(contents)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"A worker does not find the class of the model or of an attack ({error}). Put it into a module that can "
            "be imported, or pass workers=1."
        ) from error
    return Judge(model.to(device), x, y, attacks, seed=seed, fast=fast)


def pack(value: object, pickler: type[pickle.Pickler] = pickle.Pickler) -> bytes:
    """One safetensors file: the memory of each tensor, and a pickle that says whose it is, in which shape and order.

    Memory and not tensors, as torch's own files have it: what shares memory still does, and channels_last stays.

    >>> tensor = torch.rand(2, 3)
    >>> one, other = unpack(pack((tensor.T, tensor[0])))
    >>> one.equal(tensor.T), one.stride(), other.data_ptr() == one.data_ptr()
    (True, (1, 3), True)
    """
    memory: dict[str, Tensor] = {}  # kept here until the end, so that no address stands for two

    class Packer(pickler):  # type: ignore[misc, valid-type]
        def persistent_id(self, part: Any) -> tuple[str, torch.dtype] | None:
            storage = part._untyped_storage if isinstance(part, TypedStorage) else part
            if not isinstance(storage, UntypedStorage) or storage.device.type != "cpu":
                return None
            name = str(storage._cdata)
            memory[name] = torch.empty(0, dtype=torch.uint8).set_(storage)
            return name, part.dtype if isinstance(part, TypedStorage) else torch.uint8

    structure = io.BytesIO()
    Packer(structure, pickle.HIGHEST_PROTOCOL).dump(value)
    memory[STRUCTURE] = torch.frombuffer(structure.getbuffer(), dtype=torch.uint8)
    return safetensors.torch.save(memory)


def unpack(contents: bytes) -> Any:
    """What was packed, by the same program: like every pickle it can name any function, so never a stranger's."""
    memory = safetensors.torch.load(contents)
    structure = memory.pop(STRUCTURE)
    storages = {name: tensor.clone().untyped_storage() for name, tensor in memory.items()}  # aligned as torch's own

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, identity: tuple[str, torch.dtype]) -> TypedStorage:
            name, dtype = identity
            return TypedStorage(wrap_storage=storages[name], dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]

    return Unpacker(io.BytesIO(structure.numpy().tobytes())).load()
