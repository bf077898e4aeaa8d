"""The standard loss is the mean negative log-probability; a frozen objective attacks once."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.objectives import OBJECTIVES, standard_loss
from excite.objectives.protocol import frozen
from excite.trace import Probe, Recorder, largest_curvature


class Shifted:
    """Adds the model's own weight to its inputs: a perturbation that depends on the parameters."""

    def __init__(self) -> None:
        self.attacks = 0

    def perturb(self, model: nn.Linear, x: Tensor, _: Tensor, __: torch.Generator | None = None) -> Tensor:
        self.attacks += 1
        return x + model.weight.detach()[0]

    def loss_at(self, model: nn.Linear, _: Tensor, perturbation: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(perturbation), y)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(model, nn.Linear)
        return self.loss_at(model, x, self.perturb(model, x, y), y)


def linear() -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3), torch.randn(12, 4), torch.randint(0, 3, (12,))


def test_the_perturbation_stays_where_the_parameters_were() -> None:
    (model, x, y), objective = linear(), Shifted()
    closure = frozen(objective, model, x, y)
    x_adv = x + model.weight.detach()[0]
    with torch.no_grad():
        model.weight.add_(1.0)
    assert torch.equal(closure(), cross_entropy(model(x_adv), y))
    assert not torch.equal(closure(), objective(model, x, y))


def test_an_objective_of_one_stage_is_what_it_was() -> None:
    model, x, y = linear()
    closure = frozen(lambda model, x, y: cross_entropy(model(x), y), model, x, y)
    assert torch.equal(closure(), cross_entropy(model(x), y))


def test_a_curvature_attacks_each_batch_once() -> None:
    (model, x, y), objective = linear(), Shifted()
    found = largest_curvature(model, Probe(x, y, batch_size=4, objective=objective))
    assert found.value > 0
    assert objective.attacks == 3


def test_a_moment_attacks_each_batch_once() -> None:
    (model, x, y), objective = linear(), Shifted()
    recorder = Recorder(model, probe=(x, y), objective=objective, gradient="probe", batch_size=4)
    recorder.record()
    assert objective.attacks == 3
    shifted = x + model.weight.detach()[0]
    (weight, bias) = torch.autograd.grad(cross_entropy(model(shifted), y), [model.weight, model.bias])
    length = torch.cat([weight.flatten(), bias]).norm()
    torch.testing.assert_close(torch.tensor(recorder.trace.gradient_norms[0]), length.double(), rtol=1e-5, atol=0.0)


def test_standard_loss_is_the_mean_negative_log_probability() -> None:
    model, x, y = linear()
    probabilities = torch.softmax(model(x), dim=1)
    expected = -torch.log(torch.stack([probabilities[i, y[i]] for i in range(len(y))])).mean()
    torch.testing.assert_close(standard_loss(model, x, y), expected)
    torch.testing.assert_close(OBJECTIVES["standard"]()(model, x, y), expected)
