"""What an attack of the authors' package `pyautoattack` needs around it: a fast model, a seed, images it takes."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from excite.attacks.ball import Norm
from excite.attacks.fast_model import FastModel, fast_inference
from excite.attacks.protocol import check_inputs
from excite.errors import InputError

NORMS: dict[Norm, str] = {"linf": "Linf", "l2": "L2"}


def perturb(
    prepare: Callable[[FastModel, int], Callable[[Tensor, Tensor], Tensor]],
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    seed: int,
) -> Tensor:
    """The images of the attack that `prepare` makes for a model with so many classes."""
    check_inputs(x, y)
    if x.dim() != 4:
        raise InputError(f"AutoAttack takes images of shape (N, C, H, W); these have {tuple(x.shape)}.")
    if len(x) == 0 or eps == 0:
        return x.clone()
    model = fast_inference(model)
    with alone_with_seed(seed, x), torch.no_grad():
        return prepare(model, model(x[:1]).shape[1])(x, y)


@contextlib.contextmanager
def alone_with_seed(seed: int, x: Tensor) -> Iterator[None]:
    """Torch's own random numbers from `seed`; afterwards they go on as if nobody had drawn."""
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        yield
