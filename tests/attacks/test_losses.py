"""Attack losses against their definitions, written out."""

import torch
from torch.nn.functional import softmax

from excite.attacks.losses import LOSSES, cross_entropy, dlr, kl, margin

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
    torch.testing.assert_close(cross_entropy(LOGITS[:1], Y[:1]), -p[:, 0].log())
    torch.testing.assert_close(kl(LOGITS[1:], p.log()), (p * (p / q).log()).sum(1))


def test_kl_of_a_dead_class_is_finite() -> None:
    dead = torch.tensor([[0.0, -200.0]])
    assert torch.isfinite(kl(torch.tensor([[-200.0, 0.0]]), torch.log_softmax(dead, 1))).all()


def test_a_misclassified_example_has_a_positive_margin_and_dlr() -> None:
    assert set(LOSSES) == {"cross_entropy", "margin", "dlr", "kl"}
    for loss in (margin, dlr):
        assert (loss(LOGITS, Y) > 0).tolist() == (LOGITS.argmax(1) != Y).tolist()
