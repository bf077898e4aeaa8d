"""A zoo of fake defences: each is flagged by name, and an honest model raises no flag."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, softmax

from excite import attacks, data
from excite.attacks import PGD, fast_inference
from excite.evaluation import AttackResult, Cost, Evaluation, Stage, evaluate, trust
from excite.evaluation.trust import EXAMPLES, WEAKEST, check_attack, without_gradients
from excite.models.lenet import LeNet5


def train(model: nn.Module, *, rate: float, epochs: int) -> nn.Module:
    digits = data.load("mnist-sample").train
    x, y = digits.floats(), digits.labels
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x), generator=generator), 64):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def honest() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10)]
        return train(nn.Sequential(*layers), rate=0.05, epochs=2)


def judge(model: nn.Module, *, images: int = 60, **options: float) -> Evaluation:
    digits = data.load("mnist-sample").test
    x, y = digits.floats()[:images], digits.labels[:images]
    settings: dict[str, Any] = {"eps": 0.1, "step": 0.02, **options}
    return evaluate(model, x, y, {"pgd": attacks.create("pgd", **settings)})


class Around(nn.Module):
    """A defence wrapped around an honest model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.train(inner.training)


class Noise(Around):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.1 * torch.randn_like(x))  # type: ignore[no-any-return]


class Softmax(Around):
    def forward(self, x: Tensor) -> Tensor:
        return softmax(self.inner(x), 1)


class Quantised(Around):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x * 8).round() / 8)  # type: ignore[no-any-return]


class ZeroGradient(Around):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.detach()) + 0 * x.sum()  # type: ignore[no-any-return]


class NoGradient(Around):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.detach())  # type: ignore[no-any-return]


class RectifiedLogits(Around):
    def forward(self, x: Tensor) -> Tensor:
        return relu(self.inner(x))


class SaturatedLogits(Around):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Scaled(Around):
    """Logits so large that the softmax rounds to 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * self.inner(x)  # type: ignore[no-any-return]


class Purified(Around):
    """Cleans its input with a few gradient steps of its own before it answers."""

    def forward(self, x: Tensor) -> Tensor:
        cleaned = x.detach()
        for _ in range(2):
            with torch.enable_grad():
                cleaned = cleaned.detach().requires_grad_()
                certainty = softmax(self.inner(cleaned), 1).amax(1).sum()
                cleaned = cleaned + 0.01 * torch.autograd.grad(certainty, cleaned)[0]
        return self.inner(x + (cleaned - x).detach())  # type: ignore[no-any-return]


class BatchStatistics(Around):
    """Normalises each batch by its own mean, in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        return logits - logits.mean(0)  # type: ignore[no-any-return]


class _WrongWay(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Misleading(Around):
    """A gradient that is there, but leads the attack away."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(_WrongWay.apply(x))  # type: ignore[no-any-return, no-untyped-call]


def in_train_mode(model: nn.Module) -> nn.Module:
    return nn.Sequential(*model.children()).train()


ZOO: list[tuple[Callable[[nn.Module], nn.Module], str]] = [
    (Noise, "random outputs"),
    (Softmax, "probabilities instead of logits"),
    (Quantised, "vanishing gradients"),
    (ZeroGradient, "vanishing gradients"),
    (NoGradient, "vanishing gradients"),
    (RectifiedLogits, "activated logits"),
    (SaturatedLogits, "activated logits"),
    (Scaled, "vanishing gradients"),
    (Purified, "optimises at inference"),
    (BatchStatistics, "batch dependence"),
    (in_train_mode, "train mode"),
    (Misleading, "accuracy does not fall"),
]


@pytest.mark.parametrize(("defence", "name"), ZOO)
def test_each_fake_defence_is_flagged_by_name(
    honest: nn.Module, defence: Callable[[nn.Module], nn.Module], name: str
) -> None:
    with torch.random.fork_rng():
        evaluation = judge(defence(honest), images=100 if defence is Misleading else 60)
    names = {flag.name for flag in evaluation.flags}
    assert name in names
    assert f"{name}: " in str(evaluation)
    assert defence is not Misleading or "black box beats white box" in names


def test_layers_that_are_the_same_in_both_modes_may_be_left_in_train_mode() -> None:
    same = [nn.InstanceNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)]
    assert not list(trust.train_mode(nn.Sequential(*same)))
    (flag,) = trust.train_mode(nn.Sequential(*same, nn.BatchNorm2d(3)))
    assert '"2"' in flag.message


def test_an_honest_model_raises_no_flag(honest: nn.Module) -> None:
    evaluation = judge(honest, steps=40)
    assert evaluation.clean.value > 0.85
    assert 0.1 < evaluation.worst.value < 0.9
    assert evaluation.flags == ()


def test_an_attack_that_has_not_converged_is_flagged(honest: nn.Module) -> None:
    assert [flag.name for flag in judge(honest, step=0.02, steps=2).flags] == ["a stronger attack helps"]


@pytest.mark.parametrize(("steps", "names"), [(40, []), (2, ["a stronger attack helps"])])
def test_the_weakest_examples_answer_for_all(honest: nn.Module, steps: int, names: list[str]) -> None:
    digits = data.load("mnist-sample").test
    x, y = digits.floats()[:500], digits.labels[:500]
    attack = attacks.create("pgd", eps=0.1, step=0.02, steps=steps)
    robust = torch.from_numpy(evaluate(honest, x, y, attack, checks=False).outcomes(str(attack)))
    x, y, passes = x[robust][:EXAMPLES], y[robust][:EXAMPLES], []
    for together in (EXAMPLES, WEAKEST):
        fast, generator = fast_inference(honest), torch.Generator().manual_seed(0)
        flags = check_attack(fast, x, y, attack=attack, share=0.5, generator=generator, together=together)
        assert [flag.name for flag in flags] == names
        passes.append(fast.forwards)
    assert passes[1] < 0.2 * passes[0]


def test_the_checks_cost_at_most_a_tenth_of_pgd_on_a_thousand_images(honest: nn.Module) -> None:
    digits = data.load("mnist-sample").test
    x, y, attack = digits.floats()[:200], digits.labels[:200], attacks.create("pgd", eps=0.1, step=0.02)
    plain, checked = (evaluate(honest, x, y, {"pgd": attack}, checks=checks).cost for checks in (False, True))
    attacking = plain.forwards + plain.backwards
    assert (
        0 < checked.forwards + checked.backwards - attacking <= 0.1 * 5 * attacking
    )  # the checks of 1,000 cost the same


class Threshold(nn.Module):
    """Class 1 above one half."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([0.5 - x, x - 0.5], 1)


@pytest.mark.parametrize(("near", "flagged", "asked"), [(1, False, 8), (2, False, 8), (3, True, 4), (20, True, 4)])
def test_the_weakest_are_asked_first_until_it_is_certain(near: int, flagged: bool, asked: int) -> None:
    x = torch.full((40, 1), 0.9)
    x[-near:] = 0.55
    fast, attack = fast_inference(Threshold()), attacks.create("pgd", eps=0.1, step=0.1, steps=1)
    flags = check_attack(
        fast, x, torch.ones(40, dtype=torch.int64), attack=attack, share=0.9, generator=torch.Generator().manual_seed(0)
    )
    assert [flag.name for flag in flags] == (["a stronger attack helps"] if flagged else [])
    gradients = fast.backwards - 40  # without that of the order; who withstands costs two steps
    assert 2 * (asked - near) <= gradients <= 2 * asked


def test_where_hardly_any_withstood_no_flag_could_be_raised(honest: nn.Module) -> None:
    x, y = torch.rand(8, 1, 28, 28), torch.zeros(8, dtype=torch.int64)
    fast, attack = fast_inference(honest), attacks.create("pgd", eps=0.1, step=0.02)
    assert check_attack(fast, x, y, attack=attack, share=0.01, generator=torch.Generator()) == []
    assert fast.forwards == 0


def test_a_weak_attack_beside_a_strong_one_of_the_same_size_is_no_reason_for_distrust(honest: nn.Module) -> None:
    digits = data.load("mnist-sample").test
    x, y = digits.floats()[:200], digits.labels[:200]
    weak = {"weak": attacks.create("pgd", eps=0.1, step=0.02, steps=2)}
    strong = {"strong": attacks.create("pgd", eps=0.1, step=0.01, steps=80, loss="margin", random_start=True)}
    assert [flag.name for flag in evaluate(honest, x, y, weak).flags] == ["a stronger attack helps"]
    assert evaluate(honest, x, y, weak | strong).flags == ()


def test_the_authors_lenet_is_flagged() -> None:
    """ReLU on the logits, trained as the paper's released code trains it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = train(LeNet5(activate_logits=True), rate=0.05, epochs=1)
    assert "activated logits" in {flag.name for flag in judge(model).flags}


class MaskedOnes(nn.Module):
    """Stops the gradient of images that it takes for ones."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return torch.where(logits.argmax(1, keepdim=True) == 1, logits.detach(), logits)


def test_examples_that_are_sorted_by_class_hide_nothing(honest: nn.Module) -> None:
    digits = data.load("mnist-sample").test
    by_class = digits.labels.argsort(stable=True)
    x, y = digits.floats()[by_class], digits.labels[by_class]
    attack = attacks.create("pgd", eps=0.1, step=0.05, steps=2)
    flags = evaluate(MaskedOnes(honest), x, y, attack, batch_size=500).flags
    assert "vanishing gradients" in {flag.name for flag in flags}


def test_checks_can_be_left_out(honest: nn.Module) -> None:
    digits = data.load("mnist-sample").test
    x, y = digits.floats()[:20], digits.labels[:20]
    attack = {"pgd": attacks.create("pgd", eps=0.1, step=0.02)}
    assert evaluate(Softmax(honest), x, y, attack, checks=False).flags == ()


def test_square_in_an_evaluation_is_held_against_the_gradient_attacks(honest: nn.Module) -> None:
    digits = data.load("mnist-sample").test
    x, y = digits.floats()[:60], digits.labels[:60]
    both = {"pgd": attacks.create("pgd", eps=0.2, step=0.02), "square": attacks.create("square", eps=0.2, queries=200)}
    evaluation = evaluate(Misleading(honest), x, y, both)
    assert evaluation.robust["square"].value < evaluation.robust["pgd"].value
    assert "black box beats white box" in {flag.name for flag in evaluation.flags}
    cascade = {"both": attacks.create("autoattack", eps=0.2, members=["apgd-ce", "square"], iterations=20, queries=300)}
    flagged = evaluate(Misleading(honest), x[:30], y[:30], cascade).flags
    assert "black box beats white box" in {flag.name for flag in flagged}


class Guesses(PGD):
    follows_gradients = False


def test_the_attack_that_sees_no_gradient_is_named() -> None:
    both = {"PGD": PGD(0.1, 0.02), "a hundred guesses": Guesses(0.1, 0.02)}
    results = {
        "PGD": AttackResult("PGD", np.full(50, True), ()),
        "a hundred guesses": AttackResult("guesses", np.arange(50) >= 10, ()),
    }
    (flag,) = without_gradients(both, results)
    assert flag.name == "black box beats white box"
    assert str(flag).count("a hundred guesses") == 2
    assert "Square" not in str(flag)


def test_attacks_without_gradients_are_not_held_against_each_other() -> None:
    alone = attacks.create("autoattack", eps=0.1, members=["square"])
    several = {"few guesses": Guesses(0.1, 0.02), "more guesses": Guesses(0.1, 0.02), "a cascade of one": alone}
    standing = {"few guesses": 45, "more guesses": 20, "a cascade of one": 35}
    results = {
        name: AttackResult(name, np.arange(50) < left, (Stage("", left, Cost()),)) for name, left in standing.items()
    }
    assert list(without_gradients(several, results)) == []


def elsewhere(model: nn.Module, x: Tensor, y: Tensor, eps: float = 8) -> Tensor:
    """Says a radius, but not in which norm."""
    return x


def test_the_attack_that_more_attacking_follows_does_not_depend_on_the_order(honest: nn.Module) -> None:
    digits = data.load("mnist-sample").test
    x, y = digits.floats()[:60], digits.labels[:60]
    square = {"square": attacks.create("square", eps=0.1, queries=10)}
    weak = {"weak": attacks.create("pgd", eps=0.1, step=0.02, steps=2)}
    unsized: dict[str, Any] = {"unsized": elsewhere}
    for both in (weak | square, square | weak, unsized | weak):
        assert "a stronger attack helps" in {flag.name for flag in evaluate(honest, x, y, both).flags}
