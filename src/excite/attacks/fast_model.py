"""A faster copy of a model for attacks: batch norm folded into convolutions, parameters frozen, channels last."""

import contextlib
import copy
import linecache
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.fx import graph_module
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.parametrize import is_parametrized

from excite.errors import InputError
from excite.precision import (
    SPACING,
    Precision,
    autocast,
    check_precision,
    exact_products,
    full_precision,
    rounding,
    rounding_of_products,
)
from excite.randomness import device_of

PROBES = 4
NOT_ASKED = "no faster copy was requested"
FOLDED = "batch norms by convolution"  # the key under which a folded copy keeps their names
OUTPUT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-2  # rounding may flip a ReLU at zero; a wrong gradient differs by far more


def fast_inference(model: nn.Module, *, precision: Precision = "float32") -> "FastModel":
    """A faster copy of `model` in eval mode; a model that cannot be sped up is used as it is.

    The copy shares nothing with `model`. Make a new one when the parameters have changed, or use a `Refolded`. With
    `precision="bf16"` or `"tf32"` it is a `RoundedModel`.

    >>> fast = fast_inference(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    >>> fast.folded
    True
    """
    if isinstance(model, FastModel):
        return model
    check_precision(precision, device_of(model))
    others = {parameter.dtype for parameter in model.parameters()} - {torch.float32}
    if precision != "float32" and others:
        raise InputError(
            f'precision="{precision}" rounds a model in float32; this one has {others.pop()}. Leave it out.'
        )
    folded = fold(model)
    return FastModel(model, folded) if precision == "float32" else RoundedModel(model, folded, precision)


class Refolded:
    """Fast copies of a model in training: traced and compared at the first batch, with new weights at every call.

    Attacks use the model in eval mode, in which batch norm is fixed until the next training step, so it can be folded.
    Batch norm without running statistics is left unfolded. The plain model is used if a copy would be wrong: with
    random layers, custom backward passes, control flow that tracing cannot see, or tensors computed from buffers. The
    model is traced again if it, one of its layers, its device or its number format is replaced.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> refolded, x = Refolded(), torch.rand(2, 3, 4, 4)
    >>> before = refolded(model, x)(x)
    >>> nn.init.zeros_(model[1].weight).sum().item()
    0.0
    >>> refolded(model, x)(x).abs().max().item()
    0.0
    """

    def __init__(self) -> None:
        self._copies: WeakKeyDictionary[nn.Module, tuple[object, fx.GraphModule | str]] = WeakKeyDictionary()

    def __call__(self, model: nn.Module, x: Tensor) -> "FastModel":
        """A fast copy of `model` with its present weights; `x` is the next batch."""
        if isinstance(model, FastModel):
            return model
        half = torch.is_autocast_enabled(x.device.type)
        layout = half, _layout(model)
        traced_layout, folded = self._copies.get(model, (None, NOT_ASKED))
        if traced_layout == layout:
            if not isinstance(folded, str):
                _copy_weights(model, folded)
            return FastModel(model, folded, compared=True)
        with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):  # a resumed run traces again
            folded = fold(model)
            if not isinstance(folded, str) and _holds_constants(folded, model):
                folded = "its trace holds tensors computed from parameters or buffers, which training changes"
            fast = FastModel(model, folded)
            fast.compare(x)
            if half and not isinstance(folded, str):
                _round_weights(folded, torch.get_autocast_dtype(x.device.type))
        self._copies.clear()  # only the last model's copy is kept
        self._copies[model] = layout, fast.why_plain or folded
        return fast

    def knows(self, model: nn.Module) -> bool:
        """Whether it has seen a batch of this model."""
        return model in self._copies

    def __reduce__(self) -> tuple[type["Refolded"], tuple[()]]:
        return Refolded, ()  # a copy traces for itself


def _layout(model: nn.Module) -> object:
    """Equal as long as a trace of `model` needs only new weights; a trace holds numbers and strings as constants."""
    modules = tuple(map(id, model.modules()))
    constants = tuple(
        (name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str) and name != "training"
    )
    return modules, constants, tuple((tensor.device, tensor.dtype, tensor.shape) for tensor in model.parameters())


class FastModel(nn.Module):
    """A model in eval mode that counts the images passing forward and backward.

    At the first batch, logits and input gradients of the folded copy are compared with the model's. If they differ,
    the plain model is used instead, and `why_plain` says why.
    """

    precision: Precision = "float32"

    def __init__(self, model: nn.Module, folded: nn.Module | str = NOT_ASKED, *, compared: bool = False) -> None:
        super().__init__()
        self._plain = [model]  # in a list, so that it is not registered as a submodule
        self.why_plain = folded if isinstance(folded, str) else None
        self._folded = None if isinstance(folded, str) else folded
        self._compared = compared or self._folded is None
        self.forwards = 0
        self.backwards = 0
        self.training = False

    @property
    def folded(self) -> bool:
        """Whether the folded copy is used (before the first batch: whether there is one)."""
        return self._folded is not None

    def forward(self, x: Tensor) -> Tensor:
        self.compare(x)
        logits = self._logits(x)
        self.forwards += len(x)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return logits

    def compare(self, x: Tensor) -> None:
        """Compare copy and model on `x`, once, in full precision even under autocast or with TF32."""
        if not self._compared:
            with torch.autocast(x.device.type, enabled=False), exact_products(x.device), eval_mode(self._plain[0]):
                plain, copied = partial(self._answer, None), partial(self._answer, self._folded)
                self.why_plain = difference(plain, copied, x[:PROBES])
            if self.why_plain is not None:
                self._folded = None
            self._compared = True

    def compile(self, *options: Any, **named: Any) -> None:
        for copied in self.children():
            copied.compile(*options, **named)

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)

    def _logits(self, x: Tensor) -> Tensor:
        return self._answer(self._folded, x)

    def _answer(self, folded: nn.Module | None, x: Tensor) -> Tensor:
        if folded is None:
            with eval_mode(self._plain[0]):
                logits: Tensor = self._plain[0](x)
        else:
            logits = folded(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x)
        return logits

    @contextlib.contextmanager
    def at_work(self, device: torch.device) -> Iterator[None]:
        """Also needed during a backward pass: checkpointed layers repeat their forward pass, products are rounded."""
        with rounding(self.precision, device), eval_mode(self._plain[0]):
            yield


class RoundedModel(FastModel):
    """A `FastModel` whose layers compute in bfloat16 or with TF32, but whose answers are float32's.

    Where rounding could change which logit is the largest, the logits are computed again in float32. Otherwise attacks
    would drop examples that they only seem to have fooled. Gradients stay rounded, but the images do not.
    """

    def __init__(self, model: nn.Module, folded: nn.Module | str, precision: Precision) -> None:
        super().__init__(model, folded)
        self.precision = precision
        self._rounded = copy.deepcopy(self._folded)
        if isinstance(self._rounded, fx.GraphModule) and precision == "bf16":
            _split_images(self._rounded)
            _round_weights(self._rounded, torch.bfloat16)

    def _logits(self, x: Tensor) -> Tensor:
        with rounding(self.precision, x.device), autocast(self.precision, x.device):
            logits = full_precision(self._answer(self._rounded if self.folded else None, x))
        with torch.no_grad():
            largest = logits.topk(min(2, logits.shape[1]), dim=1).values
            error = 2 * SPACING[self.precision] * torch.linalg.vector_norm(logits, dim=1)
            close = largest[:, 0] - largest[:, -1] <= error
            numbers = close.nonzero().squeeze(1)
            if len(numbers) == 0:
                return logits
            self.forwards += len(numbers)
            with torch.autocast(x.device.type, enabled=False), exact_products(x.device):
                exact = self._answer(self._folded, x[numbers])
            correction = torch.zeros_like(logits).index_copy_(0, numbers, exact - logits[numbers])
        return logits + correction


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside; afterwards every module has its former mode."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def fold(model: nn.Module) -> fx.GraphModule | str:
    """A traced, frozen, channels-last copy in which batch norms are folded into convolutions; or why there is none."""
    try:
        groups = [module.process_group for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
        with eval_mode(model):
            traced = fx.symbolic_trace(copy.deepcopy(model, {id(group): group for group in groups}))  # not copied
    except Exception as error:  # any forward may fail under tracing; the plain model still works
        return f"it cannot be traced ({_first_line(error)})"
    _forget_source(traced)
    traced.meta[FOLDED] = _fold_batch_norms(traced)
    traced.delete_all_unused_submodules()
    traced.recompile()
    _forget_source(traced)
    for parameter in traced.parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return traced


@torch.no_grad()
def _copy_weights(model: nn.Module, folded: fx.GraphModule) -> None:
    """Copy the present weights and statistics of `model` into its folded copy."""
    weights = _tensors(model)
    for conv, batch_norm in folded.meta[FOLDED].items():
        fused = _fused_weights(model.get_submodule(conv), model.get_submodule(batch_norm))
        weights[f"{conv}.weight"], weights[f"{conv}.bias"] = fused
    for name, tensor in _tensors(folded).items():
        tensor.copy_(weights[name])


LAYERS = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class _Split(nn.Module):
    """A layer that sees each input as the sum of two numbers in bfloat16, which together have 16 digits."""

    def __init__(self, layer: nn.Module, dimension: int) -> None:
        super().__init__()
        self.layer, self.dimension = layer, dimension
        layer.weight = nn.Parameter(torch.cat([cast(Tensor, layer.weight)] * 2, 1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        high = x.bfloat16()
        low = (x - high).detach().bfloat16()
        result: Tensor = self.layer(torch.cat([high, low], self.dimension))
        return result


def _split_images(folded: fx.GraphModule) -> None:
    """Split the input of the first layer: between ½ and 1 numbers in bfloat16 are 1/256 apart, as far as many an ε."""
    for node in folded.graph.nodes:
        if node.op == "call_module" and isinstance(layer := folded.get_submodule(node.target), LAYERS):
            if getattr(layer, "groups", 1) == 1 and not is_parametrized(layer):
                folded.set_submodule(node.target, _Split(layer, -1 if isinstance(layer, nn.Linear) else 1))
            return


def _round_weights(folded: fx.GraphModule, format: torch.dtype) -> None:
    """Round weights of layers once; autocast would do the same at every call."""
    read = {str(node.target).rpartition(".")[0] for node in folded.graph.nodes if node.op == "get_attr"}
    for name, module in folded.named_modules():
        layer = isinstance(module, LAYERS) and not is_parametrized(module)
        if layer and name not in read and module.weight.dtype == torch.float32:
            module.to(format)


def _holds_constants(folded: fx.GraphModule, model: nn.Module) -> bool:
    """Whether the trace holds tensors that are neither parameters nor buffers, which `_copy_weights` cannot update."""
    fused = {f"{conv}.{tensor}" for conv in folded.meta[FOLDED] for tensor in ("weight", "bias")}
    read = {str(node.target) for node in folded.graph.nodes if node.op == "get_attr"}
    return not _tensors(model).keys() >= read | (_tensors(folded).keys() - fused)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; those that are shared have several names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return dict([*parameters, *model.named_buffers(remove_duplicate=False)])


def _fold_batch_norms(traced: fx.GraphModule) -> dict[str, str]:
    """Fold batch norms that directly follow a convolution; returns convolution and batch norm by name."""
    modules = dict(traced.named_modules())
    uses = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    pairs: dict[str, str] = {}
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm2d | nn.SyncBatchNorm):
            continue
        (before,) = node.all_input_nodes
        if before.op != "call_module" or not isinstance(modules[before.target], nn.Conv2d):
            continue
        if is_parametrized(modules[before.target]):  # as by spectral_norm: its weight is computed anew at each call
            continue
        used_once = uses[node.target] == uses[before.target] == len(before.users) == 1
        if not used_once or modules[node.target].running_mean is None:
            continue
        conv = modules[before.target]
        conv.weight, conv.bias = _fused_weights(conv, modules[node.target])
        pairs[before.target] = node.target
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    return pairs


def _forget_source(traced: fx.GraphModule) -> None:
    """Free the source text that torch keeps of every trace for tracebacks; thousands of them add up."""
    key = type(traced).forward.__code__.co_filename
    linecache.cache.pop(key, None)
    graph_module._loader.eval_cache.pop(key, None)


def _fused_weights(conv: nn.Module, batch_norm: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    conv, norm = cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, batch_norm)
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    return fuse_conv_bn_weights(conv.weight, conv.bias, mean, variance, norm.eps, norm.weight, norm.bias)


def difference(model: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], x: Tensor) -> str | None:
    """How `other` differs from `model` at `x`: in logits, with or without grad mode, or in input gradients."""
    logits, gradient = _logits_and_gradient(model, x)
    try:
        other_logits, other_gradient = _logits_and_gradient(other, x)
        with torch.no_grad():
            quiet_logits = other(x)
    except Exception as error:  # a trace can be wrong in ways that only show when it runs
        return f"its traced copy does not run ({_first_line(error)})"
    if not all(_close(each, logits, OUTPUT_TOLERANCE) for each in (other_logits, quiet_logits)):
        return "its traced copy returns different logits"
    return None if _close(other_gradient, gradient, GRADIENT_TOLERANCE) else "its traced copy has different gradients"


def output_tolerance(device: torch.device) -> float:
    """How much the logits of a copy may differ from the model's, relative to their length, in the precision in force.

    With TF32, 1e-3 was measured on ResNets and DenseNets, and 5e-3 on other networks.
    """
    return max(OUTPUT_TOLERANCE, 8 * rounding_of_products(device))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


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
