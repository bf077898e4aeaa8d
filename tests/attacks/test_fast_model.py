"""The fast model is the same function, and where it cannot be it steps aside."""

import copy
import gc
import linecache
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from excite import models
from excite.attacks import fast_inference
from excite.attacks.fast_model import OUTPUT_TOLERANCE, Refolded, RoundedModel, fold, output_tolerance
from excite.objectives import PGDAT
from tests.tf32 import tf32


def logits_and_gradient(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits.square().sum(), x)
    return logits.detach(), gradient


def with_statistics(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Batch-norm statistics and scales that are not the trivial ones."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            with torch.no_grad():
                module.weight.copy_(torch.rand(module.weight.shape, generator=generator) + 0.5)
                module.bias.copy_(torch.randn(module.bias.shape, generator=generator) * 0.1)
    model.train()
    for _ in range(3):
        model(torch.rand(8, *shape, generator=generator))
    return model.eval()


class Block(nn.Module):
    """A residual block that calls one convolution twice: neither call may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.stem_bn = nn.BatchNorm2d(8)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.bn2 = nn.BatchNorm2d(8, affine=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.stem_bn(self.stem(x)))
        inner = relu(self.bn1(self.shared(out)))
        return self.head(relu(self.bn2(self.shared(inner)) + out).mean((2, 3)))  # type: ignore[no-any-return]


FAMILY: list[tuple[str, tuple[int, int, int]]] = [
    ("resnet8", (3, 32, 32)),
    ("resnet20", (3, 32, 32)),
    ("densenet40", (3, 32, 32)),
    ("lenet5", (1, 28, 28)),
]


@pytest.mark.parametrize(("name", "shape"), FAMILY)
def test_every_family_keeps_its_outputs_and_input_gradients(name: str, shape: tuple[int, int, int]) -> None:
    model = with_statistics(models.create(name, input_shape=shape), shape).double()
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fast = fast_inference(model)
    for ours, theirs in zip(logits_and_gradient(fast, x), logits_and_gradient(model, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert fast.folded
    single = fast_inference(model.float())
    logits = model(x.float()).detach()
    assert (single(x.float()) - logits).abs().max() <= 1e-5 * max(1.0, float(logits.abs().max()))


def test_shared_convolutions_stay_unfolded() -> None:
    model = with_statistics(Block(), (3, 8, 8)).double()
    x = torch.rand(4, 3, 8, 8, dtype=torch.float64)
    fast = fast_inference(model)
    for ours, theirs in zip(logits_and_gradient(fast, x), logits_and_gradient(model, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert fast.folded
    kinds = [type(module) for module in fast.modules()]
    assert kinds.count(nn.BatchNorm2d) == 2


def test_nothing_is_shared_with_the_model(convnet: nn.Module, images: Tensor) -> None:
    convnet.train()
    fast = fast_inference(convnet)
    before = fast(images)
    assert not before.requires_grad
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    with torch.no_grad():
        for parameter in convnet.parameters():
            parameter.add_(1)
    assert torch.equal(fast(images), before)
    assert convnet.training
    assert fast_inference(fast) is fast


def test_images_are_counted(convnet: nn.Module, images: Tensor) -> None:
    fast = fast_inference(convnet)
    fast(images)
    logits_and_gradient(fast, images[:7])
    assert (fast.forwards, fast.backwards) == (len(images) + 7, 7)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) + torch.randn(1)


class StraightThrough(nn.Module):
    """Rounds, and pretends it had not: tracing sees the rounding only."""

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: object, x: Tensor) -> Tensor:
            return x.round()

        @staticmethod
        def backward(_ctx: object, *gradients: Tensor) -> Tensor:
            return gradients[0]

    def forward(self, x: Tensor) -> Tensor:
        rounded: Tensor = self.Round.apply(4 * x)  # type: ignore[no-untyped-call]
        return rounded.flatten(1)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if x.mean() > 0.5 else -x.flatten(1)


class KnowsItsMode(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (2 if torch.is_grad_enabled() else 2.0) * x.flatten(1)


class Uncopyable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(192, 4)

    def __deepcopy__(self, _: object) -> "Uncopyable":
        raise RuntimeError("no copies")

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1))  # type: ignore[no-any-return]


REASONS = {
    Noisy: "logits",
    StraightThrough: "gradients",
    Branching: "it cannot be traced (TraceError",
    Uncopyable: "it cannot be traced (RuntimeError: no copies",
}


@pytest.mark.parametrize("kind", REASONS)
def test_models_that_cannot_be_traced_answer_themselves(kind: type[nn.Module], images: Tensor) -> None:
    model = kind()
    fast = fast_inference(model)
    torch.manual_seed(0)
    fast(images)
    assert not fast.folded
    assert fast.why_plain is not None
    assert REASONS[kind] in fast.why_plain
    torch.manual_seed(1)
    ours = logits_and_gradient(fast, images)
    torch.manual_seed(1)
    theirs = logits_and_gradient(model, images)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_a_model_that_asks_for_its_mode_is_still_right(images: Tensor) -> None:
    fast = fast_inference(KnowsItsMode())
    with torch.no_grad():
        assert torch.equal(fast(images), 2 * images.flatten(1))


@pytest.mark.parametrize(("name", "shape"), [*FAMILY, ("wrn-16-4", (3, 16, 16))])
def test_a_refolded_model_follows_its_training(name: str, shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(2, *shape, generator=generator, dtype=torch.float64), torch.arange(2)
    torch.manual_seed(0)
    model = models.create(name, input_shape=shape, normalize=([0.4] * shape[0], [0.3] * shape[0])).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    refolded = Refolded()
    for _ in range(2):
        fast = refolded(model, x)
        assert fast.folded
        plain = copy.deepcopy(model).eval()
        for ours, theirs in zip(logits_and_gradient(fast, x), logits_and_gradient(plain, x), strict=True):
            assert (ours - theirs).norm() <= 1e-9 * theirs.norm()
        assert torch.equal(fast(x), fast_inference(model)(x))
        assert model.training
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def test_refolding_notices_other_layers_models_and_number_formats(convnet: nn.Sequential, images: Tensor) -> None:
    refolded = Refolded()
    refolded(convnet, images)
    convnet[2] = nn.Tanh()
    torch.testing.assert_close(refolded(convnet, images)(images), convnet(images).detach())
    other = copy.deepcopy(convnet)
    with torch.no_grad():
        other[7].get_parameter("bias").add_(1.0)
    torch.testing.assert_close(refolded(other, images)(images), other(images).detach())
    torch.testing.assert_close(refolded(convnet.double(), images.double())(images.double()), convnet(images.double()))
    fast = fast_inference(convnet)
    assert refolded(fast, images) is fast


class FromBuffer(nn.Module):
    """Computes with a buffer while it is being traced, so that the trace keeps what it was."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale.exp()


@pytest.mark.parametrize("kind", [Noisy, StraightThrough, Branching, Uncopyable, FromBuffer])
def test_models_that_cannot_be_refolded_answer_themselves(kind: type[nn.Module], images: Tensor) -> None:
    model, refolded = kind(), Refolded()
    for seed in range(2):
        state = torch.get_rng_state()
        fast = refolded(model, images)
        assert not fast.folded
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(seed)
        ours = fast(images)
        torch.manual_seed(seed)
        assert torch.equal(ours, model(images))
        for buffer in model.buffers():
            buffer.add_(1)


def test_synchronised_batch_norm_is_folded_too(convnet: nn.Sequential, images: Tensor) -> None:
    plain = convnet(images).detach()
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(convnet)  # type: ignore[no-untyped-call]
    fast = Refolded()(synchronised, images)
    torch.testing.assert_close(fast(images), plain, rtol=1e-4, atol=1e-5)
    assert fast.folded
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in fast.modules())


def test_refolding_keeps_no_model_alive_and_is_not_copied(convnet: nn.Sequential, images: Tensor) -> None:
    refolded, model = Refolded(), copy.deepcopy(convnet)
    refolded(model, images)
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
    for twin in (copy.deepcopy(refolded), pickle.loads(pickle.dumps(refolded))):
        torch.testing.assert_close(twin(convnet, images)(images), convnet(images).detach())


def test_mixed_precision_does_not_count_as_another_function(convnet: nn.Sequential, images: Tensor) -> None:
    refolded = Refolded()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert refolded(convnet, images).folded
        assert refolded(convnet, images)(images).dtype is torch.bfloat16


def test_nothing_of_a_trace_is_kept_when_it_is_gone() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    before = set(linecache.cache)
    for _ in range(3):
        assert fast_inference(net).folded
    assert set(linecache.cache) <= before


class NamedInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(input=self.conv(x)).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("change", [weight_norm, spectral_norm, orthogonal, None])
def test_weights_that_are_computed_and_inputs_that_are_named(change: Any, images: Tensor) -> None:
    model: Any = NamedInput()
    if change:
        change(model.conv)
    refolded = Refolded()
    for _ in range(2):
        with_statistics(model, (3, 8, 8))
        for one, other in zip(
            logits_and_gradient(refolded(model, images), images), logits_and_gradient(model, images), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Annealed(nn.Module):
    """A number that training changes by hand, as a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.scale = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), 0.1

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layers(x)  # type: ignore[no-any-return]


def test_refolding_notices_a_number_that_has_changed(images: Tensor) -> None:
    model, refolded = Annealed(), Refolded()
    refolded(model, images)(images)
    model.scale = 1.0
    torch.testing.assert_close(refolded(model, images)(images), model(images))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten())
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))  # type: ignore[no-any-return]


def test_layers_computed_again_in_the_backward_pass_are_still_in_eval_mode(images: Tensor) -> None:
    model, y = Checkpointed().train(), torch.zeros(len(images), dtype=torch.long)
    PGDAT(steps=2).perturb(model, images, y)
    assert int(model.block[1].num_batches_tracked) == 0  # type: ignore[arg-type]
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(("name", "shape"), FAMILY)
def test_a_copy_is_used_where_products_are_rounded(name: str, shape: tuple[int, int, int]) -> None:
    model = with_statistics(models.create(name, input_shape=shape), shape)
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1))
    fast = fast_inference(model)
    with tf32():
        difference = (fast(x) - model(x)).norm(dim=1)
        assert fast.folded, fast.why_plain
        assert Refolded()(model, x).folded
        assert (difference <= output_tolerance(x.device) * model(x).norm(dim=1)).all()
        if name != "lenet5":  # has no batch norm
            assert difference.max() > OUTPUT_TOLERANCE * model(x).norm(dim=1).max()  # so products were rounded


def test_a_model_that_is_evaluated_by_one_of_several_processes_is_copied(tmp_path: Path) -> None:
    """On GPUs its batch norm then refers to a group of processes, which cannot be copied."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = with_statistics(models.create("resnet8"), (3, 32, 32))
        nn.SyncBatchNorm.convert_sync_batchnorm(model, dist.new_group([0]))  # type: ignore[no-untyped-call]
        x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        fast = fast_inference(model)
        torch.testing.assert_close(fast(x), model(x))
        assert fast.folded, fast.why_plain
        del fast, model
    finally:
        gc.collect()
        dist.destroy_process_group()


def test_a_rounded_model_gives_the_answers_of_float32(convnet: nn.Sequential) -> None:
    """Logits that bfloat16 cannot order are computed in float32; gradients stay rounded."""
    model = with_statistics(convnet, (3, 8, 8))
    x = torch.rand(1000, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            plain = model(x)
    rounded = fast_inference(model, precision="bf16")
    logits, gradient = logits_and_gradient(rounded, x)
    assert logits.dtype is torch.float32
    assert rounded.folded
    assert not torch.equal(plain.argmax(1), exact.argmax(1))
    assert torch.equal(logits.argmax(1), exact.argmax(1))
    assert rounded.forwards > 1000  # those computed twice
    truth = logits_and_gradient(model, x)[1]
    assert 1e-4 < (gradient - truth).norm() / truth.norm() < 0.3


def test_a_rounded_model_that_cannot_be_traced_is_rounded_all_the_same(images: Tensor) -> None:
    class Untraceable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(images[0].numel(), 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1)) if x.max() > 0 else x

    model = Untraceable().eval()
    rounded = fast_inference(model, precision="bf16")
    logits, gradient = logits_and_gradient(rounded, images)
    assert not rounded.folded
    torch.testing.assert_close(logits, model(images).detach(), rtol=0.02, atol=0.02)
    assert not torch.equal(gradient, logits_and_gradient(model, images)[1])


def test_refolding_rounds_weights_once_under_autocast(convnet: nn.Sequential, images: Tensor) -> None:
    """The logits are those of autocast to the bit, which would round the same weights at every call."""
    refolded = Refolded()
    for _ in range(2):
        with torch.no_grad():
            for parameter in convnet.parameters():
                parameter.add_(0.01)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(refolded(convnet, images)(images), fast_inference(convnet)(images))
        logits = refolded(convnet, images)(images)
        assert logits.dtype is torch.float32
        torch.testing.assert_close(logits, convnet(images).detach(), rtol=1e-4, atol=1e-4)


def test_tf32_rounds_the_search_and_not_the_answer(convnet: nn.Sequential) -> None:
    x = torch.rand(300, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    rounded = RoundedModel(convnet, fold(convnet), "tf32")
    with tf32(asked=False):
        logits, _ = logits_and_gradient(rounded, x)
        exact = convnet(x).detach()
    assert 1e-5 < (logits - exact).norm() / exact.norm() < 1e-2
    assert torch.equal(logits.argmax(1), exact.argmax(1))


def test_steps_smaller_than_bfloat16_can_tell_apart_are_seen() -> None:
    """Between ½ and 1 its numbers are 1/256 apart, but the first layer gets each pixel as two of them."""
    difference, logits = nn.Linear(2, 1, bias=False), nn.Linear(1, 3)
    with torch.no_grad():
        difference.weight.copy_(torch.tensor([[1.0, -1.0]]))
        logits.weight.copy_(torch.tensor([[1.0], [-1.0], [0.0]]))
        logits.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))  # so that the answer is clear
    rounded = fast_inference(nn.Sequential(nn.Flatten(), difference, logits), precision="bf16")
    x = torch.tensor([[0.75 + 2**-11, 0.75]])
    assert x.bfloat16()[0, 0] == x.bfloat16()[0, 1]
    assert rounded(x)[0].tolist() == [2**-11, -(2**-11), 1.0]
    assert rounded.forwards == 1  # nothing was computed again
