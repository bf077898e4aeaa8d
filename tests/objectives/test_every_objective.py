"""What holds for every objective: it leaves no sign on the model, and the recorder works under it."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, log_softmax

from excite.errors import InputError
from excite.objectives import OBJECTIVES, Objective, frozen
from excite.randomness import seed_all
from excite.registry import build
from excite.trace import Probe, Recorder, largest_curvature

KINDS: dict[str, dict[str, Any]] = {
    "standard": {},
    "sam": {"rho": 0.1},
    "n_fgsm": {"eps": 0.05},
    "pgd_at": {"steps": 2, "random_start": True},
    "trades": {"steps": 2, "beta": 2.0},
    "rst": {"steps": 2, "beta": 2.0, "unlabelled_weight": 0.5},
    "awp": {"steps": 2, "beta": 2.0, "gamma": 0.05},
}
PERTURBING = [kind for kind in KINDS if kind != "standard"]
ADVERSARIAL = [kind for kind in PERTURBING if kind != "sam"]
EPOCHS, STEPS, BATCH, CLASSES = 3, 4, 8, 3


def objective_of(kind: str) -> Objective:
    return build("objective", OBJECTIVES, kind, KINDS[kind])


def dropout_network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, CLASSES)
    ).double()


def examples(seed: int, count: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, 4, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


def by_hand(kind: str, call: Callable[[Tensor], Tensor], x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    """The loss at a given x_adv; for SAM and AWP `call` has the moved weights."""
    if kind in ("standard", "sam"):
        return cross_entropy(call(x), y)
    if kind in ("pgd_at", "n_fgsm"):
        return cross_entropy(call(x_adv), y)
    logits = call(x)
    natural, adversarial = log_softmax(logits, 1), log_softmax(call(x_adv), 1)
    losses = cross_entropy(logits, y, reduction="none") + 2.0 * (natural.exp() * (natural - adversarial)).sum(1)
    if kind == "rst":
        weights = torch.tensor([1.0] * (len(y) // 2) + [0.5] * (len(y) // 2), dtype=torch.float64)
        return (weights * losses).sum() / weights.sum()
    return losses.mean()


def held_loss(
    kind: str, objective: Any, model: nn.Module, x: Tensor, y: Tensor
) -> Callable[[dict[str, Tensor]], Tensor]:
    """The loss as a function of parameters, at the perturbation of the parameters that `model` has now."""
    found: Any = objective.perturb(model, x, y) if kind != "standard" else x
    x_adv = found.x_adv if kind == "awp" else found
    moved: dict[str, Tensor] = {"awp": lambda: found.weights, "sam": lambda: found}.get(kind, dict)()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        values = {name: value + moved[name] if name in moved else value for name, value in parameters.items()}
        return by_hand(kind, lambda images: functional_call(model, values, (images,)), x, x_adv, y)

    return loss


def test_every_objective_is_listed() -> None:
    assert set(KINDS) == set(OBJECTIVES)


@pytest.mark.parametrize("kind", PERTURBING)
@pytest.mark.parametrize("traceable", [True, False])
def test_perturbing_leaves_no_sign(*, kind: str, traceable: bool) -> None:
    model: nn.Module = dropout_network()
    if not traceable:
        model.append(Branching())  # type: ignore[operator]
    first, *_, last = model.parameters()
    first.requires_grad_(False)
    last.grad = torch.ones_like(last)
    model[1].eval()  # type: ignore[index]
    optimizer = torch.optim.SGD([last], lr=0.1)
    recorder = Recorder(model, optimizer, slopes_per_epoch=4)
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    paid: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda _, name=name: paid.append(name))  # type: ignore[no-untyped-call]
    objective: Any = objective_of(kind)
    objective.perturb(model, *examples(0), torch.Generator().manual_seed(0))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["0.weight"]
    assert torch.equal(torch.get_rng_state(), random)
    assert last.grad is not None
    assert torch.equal(last.grad, torch.ones_like(last))
    assert all(parameter.grad is None for parameter in model.parameters() if parameter is not last)
    assert len(recorder.trace.slopes) == 0
    if kind not in ("sam", "awp"):
        assert paid == []


class Branching(nn.Module):
    """Control flow that tracing cannot see."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else 1.0 * x


@pytest.mark.parametrize("kind", KINDS)
def test_two_stages_make_one_loss(kind: str) -> None:
    model, objective = dropout_network(), objective_of(kind)
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    whole = objective(model, *examples(0))
    torch.manual_seed(1)
    torch.testing.assert_close(frozen(objective, twin, *examples(0))(), whole)


def run(kind: str, make: Callable[[nn.Module, Any], Recorder] | None) -> tuple[list[Tensor], Recorder | None]:
    model, objective = dropout_network(), objective_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(5)
    recorder = make(model, optimizer) if make else None
    for index in range(EPOCHS * STEPS):
        model.train()
        closure = frozen(objective, model, *examples(index))
        optimizer.zero_grad()
        closure().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if recorder:
            recorder.after_step(closure)
            if index % STEPS == STEPS - 1:
                recorder.record()
    momenta = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
    return [*model.state_dict().values(), *momenta, torch.get_rng_state()], recorder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gradient", ["epoch_mean", "probe"])
def test_a_run_with_a_recorder_is_bit_identical_to_one_without(kind: str, gradient: Any) -> None:
    plain, _ = run(kind, None)
    watched, recorder = run(
        kind,
        lambda model, optimizer: Recorder(
            model,
            optimizer,
            probe=examples(77, 16),
            objective=objective_of(kind),
            gradient=gradient,
            input_gradients=gradient == "epoch_mean",
            batch_size=8,
            slopes_per_epoch=2,
            curvature_every=2,
        ),
    )
    for expected, actual in zip(plain, watched, strict=True):
        assert torch.equal(expected, actual)
    assert recorder is not None
    assert len(recorder.trace.slopes) >= 2 * EPOCHS
    assert (recorder.trace.gradient_norms > 0).all()
    assert len(recorder.trace.curvatures) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_are_secants_of_the_loss_at_the_held_perturbation(kind: str) -> None:
    model, objective = dropout_network(), objective_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recorder = Recorder(model, optimizer, slopes_per_epoch=STEPS, steps_per_epoch=STEPS)
    torch.manual_seed(5)
    expected = []

    def gradient(loss: Callable[[dict[str, Tensor]], Tensor], at: nn.Module, mask: Tensor) -> Tensor:
        torch.set_rng_state(mask)
        named = {name: value.detach().clone().requires_grad_() for name, value in at.named_parameters()}
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss(named), list(named.values()))])

    for step in range(STEPS):
        x, y = examples(step)
        begin, before = torch.get_rng_state(), copy.deepcopy(model)
        loss = held_loss(kind, objective, copy.deepcopy(model), x, y)
        torch.set_rng_state(begin)
        closure = frozen(objective, model, x, y)
        optimizer.zero_grad()
        closure().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mask = torch.get_rng_state()
        recorder.after_step(closure)
        change = gradient(loss, model, mask) - gradient(loss, before, mask)
        moved = [a.detach() - b.detach() for a, b in zip(model.parameters(), before.parameters(), strict=True)]
        expected.append(float(change.norm() / nn.utils.parameters_to_vector(moved).norm()))
        torch.set_rng_state(mask)
    np.testing.assert_allclose(recorder.trace.slopes, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_curvature_is_that_of_the_loss_at_the_held_perturbation(kind: str) -> None:
    model, objective = dropout_network(), objective_of(kind)
    model[4].p = 0.0  # type: ignore[assignment]
    x, y = examples(9, 2 * BATCH)
    twin = copy.deepcopy(model)
    losses = []
    for index in range(2):
        seed_all(index, torch.device("cpu"))
        part = slice(index * BATCH, (index + 1) * BATCH)
        losses.append(held_loss(kind, objective, twin, x[part], y[part]))
    named = {name: value.detach() for name, value in twin.named_parameters()}

    def of_flat(vector: Tensor) -> Tensor:
        pieces = torch.split_with_sizes(vector, [value.numel() for value in named.values()])
        values = {name: piece.view(old.shape) for (name, old), piece in zip(named.items(), pieces, strict=True)}
        return torch.stack([loss(values) for loss in losses]).mean()

    flat = torch.cat([value.flatten() for value in named.values()])
    hessian = torch.autograd.functional.hessian(of_flat, flat)  # type: ignore[no-untyped-call]
    assert isinstance(hessian, Tensor)
    expected = float(torch.linalg.eigvalsh(hessian).abs().max())
    probe = Probe(x, y, batch_size=BATCH, objective=objective)
    found = largest_curvature(model, probe, iterations=60, tolerance=1e-6)
    assert found.value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_gives_nearly_the_same_loss_in_float32(kind: str) -> None:
    losses = []
    for enabled in (False, True):
        model, (x, y) = dropout_network().float(), examples(0, 32)
        model[4].p = 0.0  # type: ignore[assignment]
        torch.manual_seed(2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = objective_of(kind)(model, x.float(), y)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.dtype is torch.float32
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_objectives_can_be_compared_copied_and_sent(kind: str) -> None:
    objective = objective_of(kind)
    objective(dropout_network(), *examples(0))
    assert pickle.loads(pickle.dumps(objective)) == copy.deepcopy(objective) == objective_of(kind)
    assert hash(objective) == hash(objective_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_an_objective_says_what_others_need_to_know(kind: str) -> None:
    objective = build("objective", OBJECTIVES, kind, KINDS[kind])
    assert objective.passes >= 3
    assert objective.needs_pseudo_labels == (kind == "rst")


def test_a_step_of_trades_is_ten_gradients_an_answer_to_differ_from_and_two_losses_to_learn_from() -> None:
    assert OBJECTIVES["trades"](steps=10).passes == 10 * 2 + 1 + 2 * 3
    assert OBJECTIVES["awp"](on="pgd_at", steps=3).passes == 3 * 2 + 1 + 2 * 3


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_whole_numbers_for_pixels_are_refused_with_the_cure(kind: str) -> None:
    x, y = examples(0)
    with pytest.raises(InputError, match="255"):
        objective_of(kind)(dropout_network(), (255 * x).byte(), y)
