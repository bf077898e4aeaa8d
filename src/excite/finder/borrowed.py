"""Borrow a model and a loader: train and draw from them at will, and everything is as before, bit for bit."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from excite.errors import InputError
from excite.randomness import (
    accelerator,
    derive_seed,
    device_of,
    kept_buffers,
    put_back,
    random_state,
    set_random_state,
)


@contextlib.contextmanager
def borrowed(model: nn.Module, loader: Iterable[Any], *, also: Iterable[Tensor] = ()) -> Iterator[Callable[[], None]]:
    """On leaving, parameters, gradients, buffers, modes, the loader's and the global generators are what they were.

    Yields a function that puts parameters and buffers back earlier, as often as one likes. Among the parameters are
    those that are `also` trained, though they are not the model's.
    """
    trained = {id(parameter): parameter for parameter in (*model.parameters(), *also)}
    parameters = [(parameter, _kept(parameter), parameter.grad) for parameter in trained.values()]
    buffers = kept_buffers(model)
    modes = [(module, module.training) for module in model.modules()]
    draws = [(generator, generator.get_state()) for generator in generators_of(loader)]
    globally = [(device, random_state(device)) for device in (device_of(model), accelerator())]

    def begin_again() -> None:
        with torch.no_grad():
            for parameter, value, _ in parameters:
                parameter.copy_(value)
                parameter.grad = None
        put_back(buffers)

    try:
        with torch.enable_grad():
            yield begin_again
    finally:
        begin_again()
        for parameter, _, gradient in parameters:
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        for generator, state in draws:
            generator.set_state(state)
        for device, found in globally:
            set_random_state(found, device)


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """The generators that a loader and its samplers draw from; those of torch's global one are not among them.

    Several loaders that are gone through together are its `flattened`, as in Lightning's CombinedLoader.
    """
    holders = [holder for each in getattr(loader, "flattened", [loader]) for holder in _with_samplers(each)]
    found = {id(each): each for each in (getattr(holder, "generator", None) for holder in holders)}
    return [generator for generator in found.values() if isinstance(generator, torch.Generator)]


def _with_samplers(loader: Iterable[Any]) -> tuple[Any, ...]:
    sampler = getattr(loader, "batch_sampler", None)
    return loader, getattr(loader, "sampler", None), sampler, getattr(sampler, "sampler", None)


def endless(loader: Iterable[Any], *seed: int) -> Iterator[Any]:
    """Batch after batch, epoch after epoch, in an order that depends on the seed alone."""
    if iter(loader) is loader:
        raise InputError("The loader can be gone through only once; pass a DataLoader or a list of batches.")
    for number, generator in enumerate(generators_of(loader)):
        generator.manual_seed(derive_seed(*seed) + number)
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise InputError("The loader yields no batch; check the data set, its length and drop_last.")


def make_fresh(model: nn.Module) -> None:
    """Draw new weights by each module's `reset_parameters`, those of layers before those of what they are part of.

    Frozen parameters keep their values, and one that several layers share is drawn by the first of them. A parameter
    that nothing draws is refused.
    """
    every = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for _, parameter in every:
        parameter.data.fill_(math.nan)  # until it is drawn
    drawn: set[int] = set()

    def draw(module: nn.Module) -> None:
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is None or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        kept = [
            (parameter, _kept(parameter))
            for parameter in module.parameters()
            if not parameter.requires_grad or id(parameter) in own & drawn
        ]
        reset()
        for parameter, value in kept:
            parameter.data.copy_(value)
        drawn.update(own)

    model.apply(draw)
    left = next((name for name, parameter in every if parameter.isnan().any()), None)
    if left is not None:
        raise InputError(
            f'There is no reset_parameters() that draws "{left}", so it cannot begin anew. Pass a function that builds '
            'the model (lambda: Net()) in place of the model, or weights="present" to begin from the weights it has.'
        )
