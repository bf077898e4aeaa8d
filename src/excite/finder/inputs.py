"""Use the caller's model, loader, batches and optimizer, and restore all of them bit for bit."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from excite.errors import ExciteError, InputError
from excite.quantities import check_positive
from excite.randomness import accelerator, derive_seed, device_of, kept_buffers, put_back, undisturbed

LossFunction = Callable[[Any, Any], Tensor]
NewOptimizer = Callable[[list[nn.Parameter], float], Optimizer]

TARGETS = ("labels", "label", "targets", "target", "y")
STEP_CURE = "pass step=lambda model, batch: …, a function that returns the loss."


@contextlib.contextmanager
def borrowed(model: nn.Module, loader: Iterable[Any], *, also: Iterable[Tensor] = ()) -> Iterator[Callable[[], None]]:
    """On exit, restore parameters, gradients, buffers, modes, and the loader's and all global random generators.

    Yields a function that restores parameters and buffers; it can be called any number of times. `also` are further
    parameters that are trained but do not belong to the model.
    """
    trained = {id(parameter): parameter for parameter in (*model.parameters(), *also)}
    parameters = [(parameter, parameter.detach().clone(), parameter.grad) for parameter in trained.values()]
    buffers = kept_buffers(model)
    loader_states = [(generator, generator.get_state()) for generator in generators_of(loader)]

    def reset() -> None:
        with torch.no_grad():
            for parameter, value, _ in parameters:
                parameter.copy_(value)
                parameter.grad = None
        put_back(buffers)

    try:
        with undisturbed(model, accelerator()), undisturbed(model, device_of(model)), torch.enable_grad():
            yield reset
    finally:
        reset()
        for parameter, _, gradient in parameters:
            parameter.grad = gradient
        for generator, state in loader_states:
            generator.set_state(state)


def generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """The generators of a loader and its samplers, except torch's global one.

    `flattened` holds the parts of a combined loader, such as Lightning's CombinedLoader.
    """
    generators: dict[int, torch.Generator] = {}
    for part in getattr(loader, "flattened", [loader]):
        batch_sampler = getattr(part, "batch_sampler", None)
        for holder in (part, getattr(part, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator):
                generators[id(generator)] = generator
    return list(generators.values())


def own_loader(loader: Any) -> Any:
    """Return a loader to iterate over beside the caller's: of a DataLoader, a copy without persistent workers.

    Workers that outlive an epoch keep random numbers from earlier epochs, and serve a single iterator.
    """
    if isinstance(loader, DataLoader):
        copied = copy.copy(loader)
        vars(copied).update(persistent_workers=False, _iterator=None)  # torch allows no assignment
        if (wrapped := vars(copied).get("base_dataloader")) is not None:  # of accelerate's loaders
            vars(copied)["base_dataloader"] = own_loader(wrapped)
        return copied
    if isinstance(loader, Iterator):
        raise InputError("The loader can be iterated only once; pass a DataLoader or a list of batches.")
    return loader


def endless(loader: Iterable[Any], *seed: int) -> Iterator[Any]:
    """Batches without end, epoch after epoch, in an order that depends on the seed alone."""
    loader = own_loader(loader)
    for number, generator in enumerate(generators_of(loader)):
        generator.manual_seed(derive_seed(*seed) + number)
    while True:
        empty = True
        with _dead_workers_named(loader):
            for batch in loader:
                empty = False
                yield batch
        if empty:
            raise InputError("The loader yields no batch; check the length of the data set and drop_last.")


@contextlib.contextmanager
def _dead_workers_named(loader: Iterable[Any]) -> Iterator[None]:
    """Say that a worker of the loader died; depending on the moment, torch only reports a lost connection."""
    try:
        yield
    except (ConnectionError, EOFError, RuntimeError) as error:
        raised_by_data_set = str(error).startswith("Caught ")  # in a worker, which passed it on
        dead = not isinstance(error, RuntimeError) or "DataLoader worker (pid" in str(error)
        if raised_by_data_set or not dead or not getattr(loader, "num_workers", 0):
            raise
        raise ExciteError(
            f"A worker process of the DataLoader died ({error}). Pass one with num_workers=0 to see its error; if "
            "there is none, the workers ran out of memory: use fewer."
        ) from error


def make_fresh(model: nn.Module) -> list[str]:
    """Draw new weights with each module's `reset_parameters`, children before parents.

    Frozen parameters keep their values. The first layer that holds a shared parameter draws it. The entries of a
    parameter that no module draws are permuted: their distribution stays what it is. Returns the names of those, unless
    all their entries are equal.
    """
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters() if p.requires_grad}
    drawn: set[int] = set()

    def draw(module: nn.Module) -> None:
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is None or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        direct = {id(parameter) for parameter in module.parameters(recurse=False)}
        kept = [
            (parameter, parameter.detach().clone())
            for parameter in module.parameters()
            if not parameter.requires_grad or id(parameter) in direct & drawn
        ]
        reset()
        for parameter, value in kept:
            parameter.data.copy_(value)
        drawn.update(direct)

    model.apply(draw)
    permuted = []
    for name, (parameter, value) in before.items():
        if torch.equal(parameter, value) and value.min() < value.max():
            order = torch.randperm(value.numel(), device=value.device)
            parameter.data.copy_(value.flatten()[order].view_as(value))
            permuted.append(name)
    return permuted


def batch_loss(model: nn.Module, batch: Any, loss_fn: LossFunction) -> Tensor:
    """`loss_fn(model(inputs), target)`. The type of the batch decides what its inputs and its target are.

    - tuple or list: the last entry is the target, the others are the inputs, in order;
    - dict: "labels" (or "label", "targets", "target", "y") is the target. A model that takes it by this name, such as
      those of Hugging Face, computes the loss itself. Otherwise the other entries are passed by name; a single one is
      passed by position;
    - tensor: it is input and target.
    """
    match batch:
        case Tensor():
            return loss_fn(model(batch), batch)
        case (_, *_, target):
            return loss_fn(model(*batch[:-1]), target)
        case Mapping():
            return _dict_loss(model, batch, loss_fn)
    raise InputError(f"Batches of type {type(batch).__name__} are not supported; {STEP_CURE}")


def _dict_loss(model: nn.Module, batch: Mapping[str, Any], loss_fn: LossFunction) -> Tensor:
    target = next((name for name in TARGETS if name in batch), None)
    if target is None:
        raise InputError(
            f"The batch has the keys {', '.join(map(str, batch))}, none of which is {', '.join(TARGETS)}; {STEP_CURE}"
        )
    if _takes(model, target):
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise InputError(f'The model takes "{target}" but its output has no .loss; {STEP_CURE}')
        return loss  # type: ignore[no-any-return]
    inputs = {name: value for name, value in batch.items() if name != target}
    output = model(*inputs.values()) if len(inputs) == 1 else model(**inputs)
    return loss_fn(getattr(output, "logits", output), batch[target])


def _takes(model: nn.Module, name: str) -> bool:
    """Whether the model's forward method has an argument of this name."""
    if type(model).__module__.startswith("torch."):  # torch's wrappers forward any arguments to the inner model
        for inner in ("_orig_mod", "module"):
            if hasattr(model, inner):
                return _takes(getattr(model, inner), name)
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on `device`."""
    if hasattr(batch, "to"):
        return batch.to(device)
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


def momentum_sgd(parameters: list[nn.Parameter], rate: float) -> Optimizer:
    """SGD with momentum 0.9."""
    return SGD(parameters, lr=rate, momentum=0.9)


def new_optimizer(wanted: Optimizer | NewOptimizer, parameters: Sequence[nn.Parameter], rate: float) -> Optimizer:
    """`wanted(parameters, rate)`, or, if `wanted` is an optimizer, a new one like it whose largest rate is `rate`.

    The parameter groups of such an optimizer keep their options and the ratios of their rates.
    """
    if isinstance(wanted, Optimizer):
        largest = max(map(initial_rate, wanted.param_groups))
        check_positive("The optimizer's largest learning rate", largest)
        groups = [
            {key: value for key, value in group.items() if key != "initial_lr"}
            | {"lr": initial_rate(group) * (rate / largest)}
            for group in wanted.param_groups
        ]
        return type(wanted)(groups, lr=rate)  # type: ignore[call-arg]
    if not callable(wanted):
        raise InputError(
            f"optimizer is {wanted!r}; pass an optimizer, or optimizer=lambda params, lr: AdamW(params, lr)."
        )
    return wanted(list(parameters), rate)


def initial_rate(group: dict[str, Any]) -> float:
    """The rate of a parameter group before a scheduler changed it."""
    return float(group.get("initial_lr", group["lr"]))
