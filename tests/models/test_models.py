"""Every model of the registry: its size, its shapes, its derivatives and its names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from excite.errors import InputError
from excite.models import MODELS, LeNet5, ResNet, create
from excite.models.resnet import Bottleneck

DIGITS = (1, 28, 28)
COLOUR = (3, 32, 32)
TINY = (3, 16, 16)


@dataclass(frozen=True)
class Row:
    """What one model must have; parameters counted for the shape of image it was made for."""

    name: str
    parameters: int
    parameters_100: int
    shape: tuple[int, int, int] = COLOUR
    small: bool = False  # cheap enough to compute with on a CPU; the others are larger sizes of the same classes


TABLE = [
    Row("lenet5", 44_426, 52_076, shape=DIGITS, small=True),
    Row("resnet8", 78_042, 83_892, small=True),
    Row("resnet20", 272_474, 278_324, small=True),
    Row("resnet50", 758_554, 764_404),
    Row("resnet110", 1_730_714, 1_736_564),
    Row("resnet18", 11_173_962, 11_220_132),
    Row("resnet50-bottleneck", 23_520_842, 23_705_252),
    Row("densenet40", 176_122, 188_092, small=True),
    Row("wrn-16-4", 2_748_890, 2_772_020, small=True),
    Row("wrn-28-10", 36_479_194, 36_536_884),
    Row("wrn-34-10", 46_160_474, 46_218_164),
]
SMALL = [row.name for row in TABLE if row.small]
BUILDERS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(create, name, input_shape=TINY) for name in SMALL},
    "lenet5, tanh, activated logits": partial(LeNet5, input_shape=TINY, activation="tanh", activate_logits=True),
    "resnet8 without batch-norm": partial(create, "resnet8", batch_norm=False),
    "bottlenecks": partial(ResNet, (Bottleneck, (4, 8), (1, 2))),
    "normalised": partial(create, "resnet8", normalize=((0.5,) * 3, (0.25,) * 3)),
}
each_network = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


def images(shape: tuple[int, int, int], count: int = 4) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def test_the_table_has_every_model() -> None:
    assert [row.name for row in TABLE] == list(MODELS)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_parameter_counts(row: Row) -> None:
    with torch.device("meta"):
        for num_classes, parameters in ((10, row.parameters), (100, row.parameters_100)):
            model = create(row.name, num_classes=num_classes, input_shape=row.shape)
            assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet50-bottleneck", 23.52), ("wrn-28-10", 36.48), ("wrn-34-10", 46.16)]
)
def test_published_sizes(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = create(name)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 2) == millions


@pytest.mark.parametrize("shape", [DIGITS, COLOUR])
@pytest.mark.parametrize("name", MODELS)
def test_shape_of_the_logits(name: str, shape: tuple[int, int, int]) -> None:
    with torch.device("cpu" if name in SMALL else "meta"):
        model = create(name, num_classes=7, input_shape=shape)
        logits = model(torch.zeros(2, *shape))
    assert logits.shape == (2, 7)


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_gives_the_weights(name: str) -> None:
    torch.manual_seed(3)
    one = create(name).state_dict()
    other = create(name).state_dict()
    torch.manual_seed(3)
    again = create(name).state_dict()
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


@each_network
def test_gradients_reach_every_parameter(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build()
    loss = cross_entropy(model(images(TINY)), torch.arange(4))
    gradients = torch.autograd.grad(loss, tuple(model.parameters()))
    silent = [
        name for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True) if not gradient.any()
    ]
    assert silent == []


@each_network
def test_hessian_vector_product_is_the_slope_of_the_gradient(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build().double()
    point = dict(model.named_parameters())
    direction = {name: torch.randn_like(parameter) / parameter.numel() ** 0.5 for name, parameter in point.items()}

    def gradient(parameters: Mapping[str, Tensor], *, create_graph: bool = False) -> Tensor:
        loss = cross_entropy(functional_call(model, dict(parameters), images(TINY).double()), torch.arange(4))
        parts = torch.autograd.grad(loss, tuple(parameters.values()), create_graph=create_graph)
        return torch.cat([part.flatten() for part in parts])

    def gradient_after(step: float) -> Tensor:
        return gradient({name: parameter + step * direction[name] for name, parameter in point.items()})

    along = gradient(point, create_graph=True) @ torch.cat([part.flatten() for part in direction.values()])
    product = torch.cat([part.flatten() for part in torch.autograd.grad(along, tuple(point.values()))])
    slope = (gradient_after(1e-7) - gradient_after(-1e-7)) / 2e-7
    assert (product - slope).norm() < 1e-4 * slope.norm()


@pytest.mark.parametrize("name", ["resnet50", pytest.param("resnet110", marks=pytest.mark.slow)])
def test_deep_hessians_are_symmetric(name: str) -> None:
    """At this depth finite differences lose their digits; a wrong double backward shows as vᵀHu ≠ uᵀHv."""
    torch.manual_seed(0)
    model = create(name, input_shape=TINY).double()
    parameters = list(model.parameters())
    loss = cross_entropy(model(images(TINY).double()), torch.arange(4))
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    u, v = ([torch.randn_like(parameter) for parameter in parameters] for _ in range(2))
    hessian_u, hessian_v = (torch.autograd.grad(gradient, parameters, w, retain_graph=True) for w in (u, v))

    def dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
        return torch.stack([(a * b).sum() for a, b in zip(one, other, strict=True)]).sum()

    torch.testing.assert_close(dot(v, hessian_u), dot(u, hessian_v), rtol=1e-8, atol=0)


@each_network
def test_channels_last_computes_the_same(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build().double().eval()
    batch = images(TINY).double()
    expected = model(batch)
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(batch.to(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet18", "densenet40", "wrn-16-4"])
def test_convolutions_start_he_normal_and_batch_norm_as_identity(name: str) -> None:
    torch.manual_seed(0)
    for module in create(name).modules():
        if isinstance(module, nn.Conv2d):
            expected = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            standard_error = expected / (2 * module.weight.numel()) ** 0.5
            assert module.weight.std().item() == pytest.approx(expected, abs=5 * standard_error)
            assert module.bias is None
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("resnet21", "resnet20"), ("LeNet-5", "lenet5"), ("wrn-28", "wrn-28-10")]
)
def test_an_unknown_model_names_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f'did you mean "{nearest}"') as caught:
        create(wrong)
    assert all(name in str(caught.value) for name in MODELS)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(InputError, match='did you mean "batch_norm"'):
        create("resnet8", batchnorm=False)
    with pytest.raises(InputError, match='did you mean "activation"'):
        create("lenet5", activations="tanh")
    with pytest.raises(InputError, match="batch_norm"):
        create("wrn-16-4", batch_norm=False)


def test_options_and_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="batch_norm"):
        create("resnet8", batch_norm="no")
    with pytest.raises(InputError, match="activation"):
        create("lenet5", activation="rely")
    with pytest.raises(InputError, match="num_classes"):
        create("resnet8", num_classes=0)
    with pytest.raises(InputError, match="input_shape"):
        create("resnet8", input_shape=(0, 32, 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clases": 5}, "num_clases"),
        ({"num_classes": 2.5}, "num_classes"),
        ({"num_classes": "10"}, "num_classes"),
        ({"input_shape": (1, "28", 28)}, "input_shape"),
        ({"input_shape": (1, 28)}, "input_shape"),
        ({"activaton": "relu"}, 'did you mean "activation"'),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        create("lenet5", **({"input_shape": DIGITS} | options))
