"""Every form in which examples and attacks are customarily given has the same verdicts; the rest names its cure."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from excite import attacks
from excite.errors import InputError
from excite.evaluation import evaluate

EPS = 8 / 255


def problem(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(24, 1, 4, 4, generator=generator, dtype=dtype)
    linear = nn.Linear(16, 3, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(3, 16, generator=generator))
    model = nn.Sequential(nn.Flatten(), linear).to(dtype)
    return model, x, model(x).argmax(1)


def verdicts(*arguments: Any, **options: Any) -> list[bool]:
    found: list[bool] = evaluate(*arguments, batch_size=8, checks=False, **options).outcomes("worst").tolist()
    return found


@pytest.mark.parametrize(
    "given",
    [
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: (x, y.int()),
        lambda x, y: (x, y.numpy().astype(np.uint8)),
        lambda x, y: (x.double(), y),
        lambda x, y: (x.double().numpy(), y.tolist()),
        lambda x, y: (DataLoader(TensorDataset(x, y), batch_size=5), None),
        lambda x, y: ([(x[:9].numpy(), y[:9].numpy()), (x[9:], y[9:])], None),
    ],
    ids=["arrays", "int32", "uint8 labels", "float64 images", "lists", "a loader", "batches"],
)
def test_examples_in_every_form(given: Callable[[Tensor, Tensor], tuple[Any, Any]]) -> None:
    model, x, y = problem()
    attack = attacks.create("pgd", eps=EPS, step=EPS / 4)
    expected = verdicts(model, x, y, {"pgd": attack})
    assert 0 < sum(expected) < 24
    assert verdicts(model, *given(x, y), {"pgd": attack}) == expected


STEP = 2.5 * EPS / 20


@pytest.mark.parametrize(
    ("given", "eps"),
    [
        (attacks.create("pgd", eps=EPS, step=STEP), None),
        ([attacks.create("pgd", eps=EPS, step=STEP)], None),
        (partial(attacks.pgd, eps=EPS, step=STEP), None),
        ("pgd", "8/255"),
        (["pgd"], EPS),
        ({"kind": "pgd", "eps": "8/255", "step": STEP}, None),
        ({"mine": {"kind": "pgd", "eps": "8/255"}}, None),
        ({"mine": "pgd"}, EPS),
        ("pgd", ["4/255", "8/255"]),
        ({"kind": "pgd", "eps": ["4/255", "8/255"]}, None),
    ],
    ids=["one", "a list", "a partial", "a name", "names", "toml", "by name", "a name by name", "radii", "toml radii"],
)
def test_attacks_in_every_form(given: Any, eps: Any) -> None:
    model, x, y = problem()
    expected = verdicts(model, x, y, {"pgd": attacks.create("pgd", eps=EPS, step=STEP)})
    assert verdicts(model, x, y, given, eps=eps) == expected


def test_fgsm_is_one_whole_step_of_pgd() -> None:
    model, x, y = problem()
    assert verdicts(model, x, y, "fgsm", eps=EPS) == verdicts(
        model, x, y, attacks.create("pgd", eps=EPS, step=EPS, steps=1)
    )


def test_a_plain_function_two_of_a_kind_and_a_journal_as_text(tmp_path: Path) -> None:
    model, x, y = problem()

    def darken(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (x - 0.5).clamp(0, 1)

    found = evaluate(model, x, y, [darken, darken, "fgsm"], eps=EPS, journal=str(tmp_path / "journal"), checks=False)
    assert len(found.attacks) == 3
    assert (tmp_path / "journal").exists()


def test_double_precision_and_autocast() -> None:
    model, x, y = problem(torch.float64)
    assert 0 < sum(verdicts(model, x.float(), y, "pgd", eps=EPS)) < 24
    single, images, labels = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert 0 <= sum(verdicts(single, images, labels, "pgd", eps=EPS)) < 24


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"eps": math.nan}, "eps"),
        ({"eps": -0.1}, "eps"),
        ({"eps": "much"}, "much"),
        ({"eps": None}, "eps"),
        ({"attacks": "pdg"}, "pgd"),
        ({"attacks": 3}, "function"),
        ({"attacks": attacks.PGD}, "class"),
        ({"x": torch.randint(9, (24, 16))}, "embeddings"),
        ({"x": "images"}, "tensor"),
        ({"y": torch.rand(24)}, "int64"),
        ({"y": None}, "DataLoader"),
        ({"x": 255 * torch.rand(24, 1, 4, 4)}, "255"),
    ],
)
def test_the_rest_is_refused_with_a_cure(change: dict[str, Any], cure: str) -> None:
    model, x, y = problem()
    given: dict[str, Any] = {"x": x, "y": y, "attacks": "pgd", "eps": EPS} | change
    with pytest.raises(InputError, match=cure):
        evaluate(model, **given)


class Several(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x.flatten(1)}


def test_a_model_must_answer_with_logits_alone() -> None:
    _, x, y = problem()
    with pytest.raises(InputError, match="dict"):
        evaluate(Several(), x, y, "pgd", eps=EPS)


def test_an_answer_that_is_not_finite_is_wrong_and_flagged() -> None:
    model, x, y = problem()

    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            answers: Tensor = model(images).clone()
            answers[images[:, 0, 0, 0] > 0.5] = math.nan
            return answers

    broken = int((x[:, 0, 0, 0] > 0.5).sum())
    found = evaluate(Broken(), x, torch.zeros_like(y), attacks.create("pgd", eps=0.0, step=0.0))
    assert found.clean.correct == int(((y == 0) & (x[:, 0, 0, 0] <= 0.5)).sum())
    assert f"{broken} of 24 examples" in next(f.message for f in found.flags if f.name == "answers that are not finite")


def test_rows_of_numbers_are_judged_without_the_checks_that_need_images() -> None:
    model, x, y = problem()
    found = evaluate(model, x.flatten(1), y, "pgd", eps=EPS)
    assert 0 < found.worst.correct < 24
