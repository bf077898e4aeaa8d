"""The fast model is the same function, and where it cannot be it steps aside."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from excite import models
from excite.attacks import fast_inference


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


@pytest.mark.parametrize("kind", [Noisy, StraightThrough, Branching, Uncopyable])
def test_models_that_cannot_be_traced_answer_themselves(kind: type[nn.Module], images: Tensor) -> None:
    model = kind()
    fast = fast_inference(model)
    torch.manual_seed(0)
    fast(images)
    assert not fast.folded
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_is_the_same_function(convnet: nn.Module, images: Tensor) -> None:
    """Needs a C++ compiler on the machine."""
    fast = fast_inference(convnet, compile=True)
    for ours, theirs in zip(logits_and_gradient(fast, images), logits_and_gradient(convnet, images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert fast.folded
