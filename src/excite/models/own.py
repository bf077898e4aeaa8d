"""Build a user's own network from `package.module:factory`; the module may be in the current folder."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excite.errors import InputError
from excite.randomness import device_of
from excite.registry import build


def build_own(path: str, options: Mapping[str, Any], *, num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Call the factory, a function or a class, and check that it returns a classifier of such images.

    It gets the options, and `num_classes` and `input_shape` if it has parameters of these names.
    """
    module_name, _, factory_name = path.partition(":")
    with _current_folder():
        try:
            with torch.random.fork_rng(devices=[]):  # the first import must not change the initial weights
                factory = getattr(importlib.import_module(module_name), factory_name)
            taken = inspect.signature(factory).parameters
            data = {"num_classes": num_classes, "input_shape": input_shape}
            given = {name: value for name, value in data.items() if name in taken}
            built: nn.Module = build("model", {path: factory}, path, options, **given)
            with torch.no_grad():
                logits = built.eval()(torch.zeros(2, *input_shape, device=device_of(built)))
            if logits.shape != (2, num_classes):
                raise ValueError(f"its output for two images has shape {tuple(logits.shape)}")
        except InputError:
            raise
        except Exception as error:  # a module may raise anything
            raise InputError(
                f"{path} cannot be used ({type(error).__name__}: {error}). Write package.module:factory, of a module "
                "in the current folder or an installed package. The factory must make a torch module that takes images "
                f"{'×'.join(map(str, input_shape))} and returns {num_classes} logits for each; it may have the "
                "parameters input_shape and num_classes."
            ) from error
    return built.train()


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.pop(0)
