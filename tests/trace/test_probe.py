"""A probe weights all examples equally, and Lanczos finds the largest |eigenvalue| of its Hessian."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from excite.errors import InputError
from excite.trace import Probe, largest_curvature


class Quadratic(nn.Module):
    """Its "logits" are ½θᵀAθ, whatever the input."""

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(len(matrix), dtype=matrix.dtype))
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        return (0.5 * self.theta @ self.matrix @ self.theta).expand(len(x))


def value_only(output: Tensor, _: Tensor) -> Tensor:
    return output


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curvature_of_a_quadratic_is_its_largest_eigenvalue(sign: int, dtype: torch.dtype) -> None:
    root = torch.randn(60, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = sign * root @ root.T
    largest = float(torch.linalg.eigvalsh(matrix).abs().max())
    probe = Probe(torch.zeros(4, 1), torch.zeros(4), loss=value_only)
    values = [
        largest_curvature(Quadratic(matrix.to(dtype)), probe, iterations=60, tolerance=1e-4, seed=seed)
        for seed in range(10)
    ]
    for found in values:
        assert found.value == pytest.approx(largest, rel=1e-4)
        assert abs(found.value - largest) <= found.residual + 1e-4 * largest


def test_curvature_in_some_parameters_is_that_of_their_hessian_block() -> None:
    class TwoBlocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.steep = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return (1.5 * self.flat @ self.flat + 3.5 * self.steep @ self.steep).expand(len(x))

    model, probe = TwoBlocks(), Probe(torch.zeros(4, 1), torch.zeros(4), loss=value_only)
    assert largest_curvature(model, probe).value == pytest.approx(7.0)
    assert largest_curvature(model, probe, parameters=[model.flat]).value == pytest.approx(3.0)


def dense_hessian(model: nn.Module, loss: Callable[[dict[str, Tensor]], Tensor]) -> Tensor:
    parameters = {name: value.detach().clone() for name, value in model.named_parameters()}
    flat = torch.cat([value.flatten() for value in parameters.values()])

    def of_flat(vector: Tensor) -> Tensor:
        pieces = torch.split_with_sizes(vector, [value.numel() for value in parameters.values()])
        named = zip(parameters.items(), pieces, strict=True)
        return loss({name: piece.view(value.shape) for (name, value), piece in named})

    hessian = torch.autograd.functional.hessian(of_flat, flat)  # type: ignore[no-untyped-call]
    assert isinstance(hessian, Tensor)
    return hessian


def normalised_network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model(5 + 4 * torch.randn(50, 3).double())  # running statistics unlike those of a batch
    return model


def test_batch_norm_uses_batch_statistics_of_the_batch_size_and_keeps_the_running_ones() -> None:
    model = normalised_network().eval()
    x, y = torch.randn(24, 3).double(), torch.randint(0, 3, (24,))
    twin = normalised_network().train()

    def loss(values: dict[str, Tensor]) -> Tensor:
        parts = [cross_entropy(functional_call(twin, values, (x[i : i + 8],)), y[i : i + 8]) for i in (0, 8, 16)]
        return torch.stack(parts).mean()

    expected = float(torch.linalg.eigvalsh(dense_hessian(twin, loss)).abs().max())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = largest_curvature(model, Probe(x, y, batch_size=8), iterations=60, tolerance=1e-6)
    assert found.value == pytest.approx(expected, rel=1e-4)
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    one_batch = largest_curvature(model, Probe(x, y, batch_size=24), iterations=60, tolerance=1e-6)
    assert one_batch.value != pytest.approx(expected, rel=1e-3)


def test_per_example_losses_soft_labels_and_objectives_agree() -> None:
    model = normalised_network()
    x, y = torch.randn(16, 3).double(), torch.randint(0, 3, (16,))

    def per_example(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets, reduction="none")

    def soft(logits: Tensor, targets: Tensor) -> Tensor:
        return -(log_softmax(logits, 1) * targets).sum(1)

    def objective(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(network(inputs), targets)

    probes = [
        Probe(x, y, batch_size=8),
        Probe(x, y, batch_size=8, loss=per_example),
        Probe(x, one_hot(y, 3).double(), batch_size=8, loss=soft),
        Probe(x, y, batch_size=8, objective=objective),
    ]
    values = [largest_curvature(model, probe, iterations=60, tolerance=1e-6).value for probe in probes]
    assert values == pytest.approx([values[0]] * 4, rel=1e-9)


def test_adversarial_objective() -> None:
    model = normalised_network()
    x, y = torch.randn(16, 3).double(), torch.randint(0, 3, (16,))

    def adversarial(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        leaf = inputs.clone().requires_grad_(True)
        (direction,) = torch.autograd.grad(cross_entropy(network(leaf), targets), leaf)
        return cross_entropy(network(inputs + 0.1 * direction.sign()), targets)

    found = largest_curvature(model, Probe(x, y, batch_size=8, objective=adversarial), iterations=60, tolerance=1e-6)
    assert found.value > 0
    assert found.residual < 1e-4 * found.value


def test_ten_seeds_agree_within_five_percent_on_a_network() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5))
    x, y = torch.randn(64, 10), torch.randint(0, 5, (64,))
    values = [largest_curvature(model, Probe(x, y, batch_size=32), seed=seed).value for seed in range(10)]
    assert max(values) / min(values) < 1.05


def test_non_finite_loss_gives_nan_and_linear_loss_gives_zero() -> None:
    model = nn.Linear(2, 1)
    probe = Probe(torch.ones(3, 2), torch.zeros(3), loss=lambda output, _: output)
    assert largest_curvature(model, probe).value == 0
    with torch.no_grad():
        model.weight.fill_(torch.nan)
    squared = Probe(torch.ones(3, 2), torch.zeros(3), loss=lambda output, _: output.square().square())
    assert torch.tensor(largest_curvature(model, squared).value).isnan()


def test_refuses_mismatched_examples_and_targets() -> None:
    with pytest.raises(InputError, match="target"):
        Probe(torch.zeros(3, 2), torch.zeros(4))


@pytest.mark.parametrize(("examples", "sizes"), [(200, [100, 100]), (256, [128, 128]), (300, [150, 150]), (9, [9])])
def test_all_examples_have_the_same_weight(examples: int, sizes: list[int]) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(examples, 4), torch.randint(0, 3, (examples,))
    x[-examples // 3 :] *= 10
    probe = Probe(x, y, batch_size=128)
    assert [len(batch) for batch, _ in probe.batches] == sizes
    with torch.no_grad():
        shares = sum(float(share()) for _, share in probe.evaluations(model))
        assert shares == pytest.approx(float(cross_entropy(model(x), y)), rel=1e-5)


def test_a_layer_that_the_loop_keeps_in_eval_mode_stays_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    probe = Probe(3 + torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    modes = [[layer.training for layer in model] for _ in probe.evaluations(model)]
    assert modes == [[True, False, True]]
    model.eval()
    assert [[layer.training for layer in model] for _ in probe.evaluations(model)] == [[True, True, True]]
    assert not model.training
