"""PGD against ten plain lines, its losses against their definitions, its promises: ball, box, an untouched model."""

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from excite.attacks import PGD, Attack, create, fast_inference, pgd
from excite.attacks.fast_model import FastModel
from excite.attacks.geometry import Norm, distance
from excite.attacks.projected_gradient import LOSSES, LossName, dlr, kl, margin
from excite.attacks.protocol import right_answers
from excite.errors import InputError


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor, *, eps: float, step: float, steps: int, norm: Norm) -> Tensor:
    """The slow twin: last iterate, no tricks."""
    x_adv = x.clone()
    for _ in range(steps):
        x_adv.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(x_adv), y, reduction="sum"), x_adv)
        with torch.no_grad():
            if norm == "linf":
                x_adv = x_adv + step * gradient.sign()
                x_adv = x + (x_adv - x).clamp(-eps, eps)
            else:
                delta = x_adv + step * gradient / gradient.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1) - x
                x_adv = x + delta * (eps / delta.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)).clamp(max=1)
            x_adv = x_adv.clamp(0, 1)
    return x_adv.detach()


@pytest.mark.parametrize("wrapped", [fast_inference, FastModel])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.02), ("l2", 0.3)])
def test_last_iterate_equals_ten_plain_lines(
    convnet: nn.Module, images: Tensor, labels: Tensor, *, norm: Norm, eps: float, wrapped: Any
) -> None:
    ours = pgd(wrapped(convnet), images, labels, eps=eps, step=eps / 4, steps=7, norm=norm, keep="last")
    twin = plain_pgd(convnet, images, labels, norm=norm, eps=eps, step=eps / 4, steps=7)
    # a gradient that is zero up to rounding may change its sign, and with it one pixel's step
    assert ((ours - twin).abs() > 1e-5).double().mean() < 1e-3


def test_best_iterate_is_misclassified_if_any_was(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    """A step three times the ball makes the path jump about: the last point is often not the best one."""
    fooled = torch.zeros(len(images), dtype=torch.bool)
    largest = torch.full((len(images),), -torch.inf)
    for steps in range(9):
        point = pgd(convnet, images, labels, eps=0.01, step=0.03, steps=steps, keep="last")
        logits = convnet(point).detach()
        fooled |= logits.argmax(1) != labels
        largest = largest.maximum(cross_entropy(logits, labels, reduction="none"))
    best = convnet(pgd(convnet, images, labels, eps=0.01, step=0.03, steps=8)).detach()
    assert torch.equal(best.argmax(1) != labels, fooled)
    assert 0 < fooled.sum() < len(fooled)
    unmoved = ~fooled
    torch.testing.assert_close(cross_entropy(best, labels, reduction="none")[unmoved], largest[unmoved])


def test_the_iterate_of_largest_loss_may_be_one_that_is_still_right(
    convnet: nn.Module, images: Tensor, labels: Tensor
) -> None:
    path = [
        cross_entropy(
            convnet(pgd(convnet, images, labels, eps=0.01, step=0.03, steps=steps, keep="last")),
            labels,
            reduction="none",
        )
        for steps in range(9)
    ]
    worst = pgd(convnet, images, labels, eps=0.01, step=0.03, steps=8, keep="largest_loss")
    torch.testing.assert_close(
        cross_entropy(convnet(worst), labels, reduction="none"), torch.stack(path).amax(0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "margin", "dlr"])
@pytest.mark.parametrize("restarts", [1, 3])
def test_leaving_the_batch_keeps_the_verdicts(
    convnet: nn.Module, images: Tensor, labels: Tensor, loss: LossName, restarts: int
) -> None:
    verdicts = []
    for early_stop in (False, True):
        x_adv = pgd(
            convnet,
            images,
            labels,
            eps=0.01,
            step=0.003,
            random_start=True,
            restarts=restarts,
            loss=loss,
            early_stop=early_stop,
            generator=torch.Generator().manual_seed(3),
        )
        verdicts.append((convnet(x_adv).argmax(1) == labels).tolist())
    assert verdicts[0] == verdicts[1]
    assert 0 < sum(verdicts[0]) < len(labels)


def test_an_evaluation_may_count_the_last_iterate(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    attack = create("pgd", eps=0.01, step=0.03, steps=8, keep="last")  # steps so long that it passes good points by
    assert str(attack).endswith("last iterate")
    right = {}
    for keep in ("last", "best"):
        found = create("pgd", eps=0.01, step=0.03, steps=8, keep=keep)(convnet, images, labels, None)
        right[keep] = (convnet(found).argmax(1) == labels).tolist()
    twin = plain_pgd(convnet, images, labels, eps=0.01, step=0.03, steps=8, norm="linf")
    assert right["last"] == (convnet(twin).argmax(1) == labels).tolist()
    assert all(last for last, best in zip(right["last"], right["best"], strict=True) if best)
    with pytest.raises(InputError, match="restarts"):
        create("pgd", eps=0.01, step=0.03, random_start=True, restarts=2, keep="last")


def test_no_steps_leave_the_images_to_their_owner(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    found = pgd(convnet, images, labels, eps=0.01, steps=0, keep="last")
    assert torch.equal(found, images)
    assert found.data_ptr() != images.data_ptr()


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    eps=st.one_of(st.sampled_from([0.0, 1 / 255, 0.3]), st.floats(0, 1)),
    ratio=st.floats(0, 5),
    steps=st.integers(0, 3),
    norm=st.sampled_from(get_args(Norm)),
    loss=st.sampled_from(get_args(LossName)),
    early_stop=st.booleans(),
    edges=st.booleans(),
)
def test_never_outside_ball_or_box(
    *,
    seed: int,
    eps: float,
    ratio: float,
    steps: int,
    norm: Norm,
    loss: LossName,
    early_stop: bool,
    edges: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, 1, 4, 4, generator=generator)
    x = x.round() if edges else x
    weights = torch.randn(16, 4, generator=generator)
    model = Linear(weights)
    y = model(x).argmax(1)
    x_adv = pgd(
        model,
        x,
        y,
        eps=eps,
        step=eps * ratio,
        steps=steps,
        norm=norm,
        loss=loss,
        random_start=True,
        early_stop=early_stop,
        generator=generator,
    )
    assert distance(x_adv, x, norm=norm).max() <= eps + 1e-7
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    if eps == 0:
        assert torch.equal(x_adv, x)


class Linear(nn.Module):
    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weights


def test_the_model_is_left_alone(convnet: nn.Sequential, images: Tensor, labels: Tensor) -> None:
    convnet.train()
    convnet[1].eval()
    before = {name: value.clone() for name, value in convnet.state_dict().items()}
    state = torch.random.get_rng_state()
    x_adv = pgd(convnet, images, labels, eps=0.05, step=0.01, random_start=True, generator=torch.Generator())
    assert not x_adv.requires_grad
    assert convnet.training
    assert not convnet[1].training
    assert convnet[4].training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in convnet.parameters())
    assert all(torch.equal(before[name], value) for name, value in convnet.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_start_points_are_used_and_projected(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    start = images + 1.0
    x_adv = pgd(convnet, images, labels, eps=0.1, step=0.0, start=start, keep="last")
    torch.testing.assert_close(x_adv, (images + 0.1).clamp(max=1))


def test_a_model_without_gradient_or_with_nan_stays_inside(images: Tensor, labels: Tensor) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1)[:, :10] - 0.5).sqrt()

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x.detach().flatten(1)[:, :10]

    for model in (Broken(), FastModel(Broken()), Cut(), FastModel(Cut())):
        for norm in get_args(Norm):
            x_adv = pgd(model, images, labels, eps=0.1, step=0.05, norm=norm)
            assert distance(x_adv, images, norm=norm).max() <= 0.1 + 1e-7
            assert torch.isfinite(x_adv).all()


def test_several_restarts_are_random_starts(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    assert PGD(0.05, 0.01, restarts=2) == PGD(0.05, 0.01, restarts=2, random_start=True)
    found = [
        pgd(
            *(convnet, images, labels),
            eps=0.05,
            steps=1,
            restarts=2,
            random_start=random_start,
            generator=torch.Generator().manual_seed(0),
        )
        for random_start in (False, True)
    ]
    assert torch.equal(*found)


def test_the_customary_step(convnet: nn.Module, images: Tensor, labels: Tensor) -> None:
    assert PGD(0.08, steps=10).step == 2.5 * 0.08 / 10
    assert PGD(0.08, steps=0).step == 2.5 * 0.08
    assert PGD(0.08, 0.0).step == 0
    default, given = pgd(convnet, images, labels, eps=0.08), pgd(convnet, images, labels, eps=0.08, step=0.01)
    assert torch.equal(default, given)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"loss": "kl"}, "start="),
        ({"loss": "crossentropy"}, "cross_entropy"),
        ({"norm": "l0"}, "linf"),
        ({"eps": -0.1}, "eps"),
        ({"step": torch.inf}, "step"),
        ({"keep": "largest_loss", "restarts": 2, "random_start": True}, '"best"'),
    ],
)
def test_errors_carry_the_cure(
    convnet: nn.Module, images: Tensor, labels: Tensor, options: dict[str, object], cure: str
) -> None:
    settings: dict[str, object] = {"eps": 0.1, "step": 0.01, **options}
    with pytest.raises(InputError, match=cure):
        pgd(convnet, images, labels, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "y", "cure"),
    [
        (torch.full((2, 1, 2, 2), 255.0), torch.zeros(2, dtype=torch.long), "255"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.long), "float"),
        (torch.full((2, 1, 2, 2), torch.nan), torch.zeros(2, dtype=torch.long), "nan"),
        (torch.zeros(2, 1, 2, 2), torch.zeros(3, dtype=torch.long), "labels"),
        (torch.zeros(2, 1, 2, 2), torch.zeros(2), "y.long()"),
        (torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int32), "y.long()"),
        (torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.uint8), "y.long()"),
        (torch.zeros(2, 3, 8, 8), torch.tensor([0, -100]), "-100"),  # ignored by cross_entropy
    ],
)
@pytest.mark.parametrize("loss", ["cross_entropy", "margin"])
def test_wrong_images_and_labels(convnet: nn.Module, x: Tensor, y: Tensor, cure: str, loss: LossName) -> None:
    with pytest.raises(InputError, match=cure.replace("(", r"\(").replace(")", r"\)")):
        pgd(convnet, x, y, eps=0.1, step=0.01, loss=loss)


LOGITS = torch.tensor([[2.0, 1.0, -1.0, 0.0], [0.0, 3.0, 1.0, 2.0]])
Y = torch.tensor([0, 0])


def test_margin_is_best_wrong_minus_right() -> None:
    torch.testing.assert_close(margin(LOGITS, Y), torch.tensor([1.0 - 2.0, 3.0 - 0.0]))


def test_dlr_divides_by_first_minus_third() -> None:
    torch.testing.assert_close(dlr(LOGITS, Y), torch.tensor([-1.0 / 2.0, 3.0 / 2.0]))


def test_dlr_is_blind_to_scale_and_shift() -> None:
    torch.testing.assert_close(dlr(1000 * LOGITS + 5, Y), dlr(LOGITS, Y))


def test_cross_entropy_and_kl() -> None:
    p, q = softmax(LOGITS[:1], 1), softmax(LOGITS[1:], 1)
    torch.testing.assert_close(LOSSES["cross_entropy"](LOGITS[:1], Y[:1]), -p[:, 0].log())
    torch.testing.assert_close(kl(LOGITS[1:], p.log()), (p * (p / q).log()).sum(1))


def test_kl_of_a_dead_class_is_finite() -> None:
    dead = torch.tensor([[0.0, -200.0]])
    assert torch.isfinite(kl(torch.tensor([[-200.0, 0.0]]), torch.log_softmax(dead, 1))).all()


def test_a_misclassified_example_has_a_positive_margin_and_dlr() -> None:
    assert set(LOSSES) == {"cross_entropy", "margin", "dlr", "kl"}
    for loss in (margin, dlr):
        assert (loss(LOGITS, Y) > 0).tolist() == (LOGITS.argmax(1) != Y).tolist()


class Overflowing(nn.Module):
    """Right about dark images; what is a little lighter gets no answer at all, as weights too large for float32 do."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label

    def forward(self, x: Tensor) -> Tensor:
        light = x.flatten(1).mean(1)
        light = torch.where(light > 0.55, torch.nan, light)
        right, wrong = 1 + 0 * light, light
        return torch.stack([right, wrong, wrong, wrong] if self.label == 0 else [wrong, right, wrong, wrong], 1)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize(
    "attack", [PGD(0.2, restarts=2), PGD(0.2, loss="margin"), create("apgd-ce", eps=0.2), create("autoattack", eps=0.2)]
)
def test_an_attack_that_reaches_no_answer_has_won(attack: Attack, label: int) -> None:
    """The largest of four numbers that are none is the first, for torch: class 0 must not count as right."""
    x, y = torch.full((4, 1, 8, 8), 0.5), torch.full((4,), label)
    moved = attack(Overflowing(label), x, y, torch.Generator().manual_seed(0))
    assert not bool(right_answers(Overflowing(label)(moved), y).any())


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"eps": "8/255"}, "eps"),
        ({"eps": 0.1, "steps": 2.5}, "steps"),
        ({"eps": 0.1, "restarts": 0}, "restarts"),
        ({"eps": 0.1, "loss": "dlr"}, 'loss="margin"'),
    ],
)
def test_options_that_are_no_numbers_and_losses_for_more_classes(options: dict[str, Any], cure: str) -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.rand(3, 1, 2, 2)
    with pytest.raises(InputError, match=cure):
        pgd(model, x, torch.zeros(3, dtype=torch.long), **options)
