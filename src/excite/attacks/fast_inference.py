"""The same function, faster to attack: batch-norm folded into convolutions, parameters frozen, channels last."""

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

PROBES = 4
OUTPUT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-2  # rounding may flip a ReLU that sits at its kink; a wrong gradient is off by far more


def fast_inference(model: nn.Module, *, compile: bool = False) -> "FastModel":
    """`model` in eval mode as attacks want it; a model it cannot speed up is used as it is.

    The copy shares nothing with `model`: make a new one after the parameters have changed.

    >>> fast = fast_inference(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    >>> fast.folded
    True
    """
    if isinstance(model, FastModel):
        return model
    folded = fold(model)
    if folded is not None and compile:
        folded.compile()
    return FastModel(model, folded)


class FastModel(nn.Module):
    """A model in eval mode that counts the images passing forward and backward.

    Its first batch decides whether the folded copy is used: where that copy's logits or input gradients differ from
    the model's own (random layers, hand-written backward passes, control flow that tracing cannot see), the plain
    model answers instead.
    """

    def __init__(self, model: nn.Module, folded: nn.Module | None) -> None:
        super().__init__()
        self._plain = [model]  # in a list, so that it is not registered: nothing done to this module reaches it
        self._folded = folded
        self._compared = folded is None
        self.forwards = 0
        self.backwards = 0
        self.training = False

    @property
    def folded(self) -> bool:
        """Whether the folded copy answers (before the first batch: whether there is one to try)."""
        return self._folded is not None

    def forward(self, x: Tensor) -> Tensor:
        if not self._compared:
            if not same_function(self._plain_forward, self._answer, x[:PROBES]):
                self._folded = None
            self._compared = True
        logits = self._answer(x)
        self.forwards += len(x)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)

    def _answer(self, x: Tensor) -> Tensor:
        if self._folded is None:
            return self._plain_forward(x)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self._folded(x)
        return logits

    def _plain_forward(self, x: Tensor) -> Tensor:
        with eval_mode(self._plain[0]):
            logits: Tensor = self._plain[0](x)
        return logits


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is back in the mode it had."""
    training = [module for module in model.modules() if module.training]
    if not training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def fold(model: nn.Module) -> nn.Module | None:
    """A traced, frozen, channels-last copy with every batch-norm that follows a convolution folded into it."""
    try:
        with eval_mode(model):
            traced = fx.symbolic_trace(copy.deepcopy(model))
    except Exception:  # whatever a stranger's forward raises under tracing, the plain model still works
        return None
    modules = dict(traced.named_modules())
    uses = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm2d):
            continue
        before = node.args[0]
        if before.op != "call_module" or not isinstance(modules[before.target], nn.Conv2d):
            continue
        used_once = uses[node.target] == uses[before.target] == len(before.users) == 1
        if not used_once or modules[node.target].running_mean is None:
            continue
        traced.set_submodule(before.target, fuse_conv_bn_eval(modules[before.target], modules[node.target]))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    for parameter in traced.parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return traced


def same_function(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether two functions give the same logits, with and without grad mode, and the same input gradients at `x`."""
    logits, gradient = _logits_and_gradient(one, x)
    try:
        other_logits, other_gradient = _logits_and_gradient(other, x)
        with torch.no_grad():
            quiet_logits = other(x)
    except Exception:  # a trace can be wrong in ways that only show when it runs
        return False
    return (
        _close(other_logits, logits, OUTPUT_TOLERANCE)
        and _close(quiet_logits, logits, OUTPUT_TOLERANCE)
        and _close(other_gradient, gradient, GRADIENT_TOLERANCE)
    )


def _logits_and_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        logits = function(x)
        if not logits.requires_grad:
            return logits, torch.zeros_like(x)
        weights = torch.linspace(-1, 1, logits[0].numel(), device=x.device, dtype=logits.dtype).cos()
        (gradient,) = torch.autograd.grad((logits.flatten(1) * weights).sum(), x, materialize_grads=True)
    return logits.detach(), gradient


def _close(value: Tensor, truth: Tensor, tolerance: float) -> bool:
    return value.shape == truth.shape and bool((value - truth).norm() <= tolerance * truth.norm())
