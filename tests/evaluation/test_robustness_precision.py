"""Attacks search in bfloat16 or with TF32, float32 decides, and the result says so."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import attacks, execution
from excite.attacks.fast_model import RoundedModel
from excite.errors import InputError
from excite.evaluation import Evaluation, compare, evaluate
from tests.faults.processes import FORKED

EPS = 8 / 255
PGD = attacks.create("pgd", eps=EPS, loss="margin")


def linear(margins: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """A linear model, and images whose right logit is ahead of the other by `margins`."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, 64, generator=generator))
        direction = layer.weight[0] - layer.weight[1]
        x = 0.4 + 0.2 * torch.rand(len(margins), 64, generator=generator)
        x += ((margins - x @ direction) / direction.square().sum())[:, None] * direction
    return nn.Sequential(nn.Flatten(), layer), x.reshape(-1, 1, 8, 8), torch.zeros(len(margins), dtype=torch.long)


def reach(model: nn.Module) -> float:
    """By how much a perturbation of size ε can lower the margin: ε times the 1-norm of the weights' difference."""
    weights = model.get_parameter("1.weight").detach()
    return EPS * float((weights[0] - weights[1]).abs().sum())


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("attack", [PGD, attacks.create("apgd-ce", eps=EPS, iterations=20)], ids=str)
def test_a_linear_model_is_exactly_as_robust_as_it_is(attack: attacks.Attack, precision: Any) -> None:
    """Also where the margin that is left is a thousandth of what bfloat16 tells apart."""
    largest = reach(linear(torch.ones(1))[0])
    margins = largest * torch.tensor([0.5, 0.9, 0.999, 0.9999, 1.0001, 1.001, 1.1, 2.0])
    model, x, y = linear(margins)
    assert 0.1 < float(x.min()) < float(x.max()) < 0.9
    found = evaluate(model, x, y, {"attack": attack}, checks=False, precision=precision)
    assert found.outcomes("attack").tolist() == [False] * 4 + [True] * 4


def still(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return x


def rounded_wrongly() -> tuple[nn.Module, Tensor, Tensor]:
    """Images that are right in float32 and wrong in bfloat16."""
    model, x, y = linear(torch.full((200,), 1e-3))
    with torch.no_grad():
        right = model(x).argmax(1) == y
        with torch.autocast("cpu", torch.bfloat16):
            wrong = model(x).argmax(1) != y
    assert (right & wrong).any()
    return model, x[right & wrong], y[right & wrong]


def test_float32_decides_which_images_have_fallen() -> None:
    found = evaluate(*rounded_wrongly(), {"still": still}, precision="bf16")
    assert found.clean.value == found.worst.value == 1


def test_the_result_says_how_it_was_found(tmp_path: Path) -> None:
    model, x, y = linear(torch.linspace(0.1, 3, 20))
    exact, rounded = (evaluate(model, x, y, {"pgd": PGD}, precision=each) for each in ("float32", "bf16"))
    assert exact.attacks["pgd"].description == str(PGD)
    rounded.save(tmp_path / "evaluation.json")
    stored = Evaluation.load(tmp_path / "evaluation.json")
    for words in (str(rounded), str(stored), json.dumps(rounded.to_json())):
        assert "searched in bf16" in words
        assert "preview" in words
    assert "searched" not in str(exact)
    assert "preview" not in str(exact)
    assert rounded.distrusted
    with pytest.raises(InputError, match="different attacks"):
        compare(exact, rounded, "pgd")


def test_a_journal_of_another_precision_is_refused(tmp_path: Path) -> None:
    evaluated = partial(evaluate, *linear(torch.linspace(0.1, 3, 20)), {"pgd": PGD}, journal=tmp_path / "journal")
    first = evaluated(precision="bf16")
    with pytest.raises(InputError, match="precision"):
        evaluated()
    assert np.array_equal(evaluated(precision="bf16").outcomes("pgd"), first.outcomes("pgd"))
    (tmp_path / "journal").unlink()
    evaluated()
    with pytest.raises(InputError, match="precision"):
        evaluated(precision="bf16")


def convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
        x = torch.rand(40, 3, 8, 8)
    with torch.no_grad():
        return model, x, model(x).argmax(1)


ENGINES = [{"workers": 2}, pytest.param({"workers": 2, "engine": "ray"}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("shards", ENGINES, ids=["processes", "ray"])
def test_workers_search_in_the_same_precision(shards: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if "engine" in shards:
        pytest.importorskip("ray")
    monkeypatch.setattr(execution, "SPAWN", FORKED)
    options: dict[str, Any] = {"eps": [0.002, 0.01], "batch_size": 8, "checks": False, "precision": "bf16"}
    model, x, y = convolutional()
    one = evaluate(model, x, y, PGD, **options)
    several = evaluate(model, x, y, PGD, **options, **shards)
    (alone,), (shared,) = one.attacks.values(), several.attacks.values()
    assert 0 < one.worst.correct < 40
    assert shared.description == alone.description
    assert "bf16" in shared.description
    assert np.array_equal(shared.robust, alone.robust)
    assert shared.cost.forwards == alone.cost.forwards  # float32 would need none to decide


def test_trust_checks_use_float32() -> None:
    """So the flags are those of a search in float32 with the same survivors."""
    model, x, y = rounded_wrongly()
    rounded, exact = (evaluate(model, x, y, {"still": still}, precision=each) for each in ("bf16", "float32"))
    assert [flag for flag in rounded.flags if flag.name != "preview"] == list(exact.flags)
    assert rounded.cost.backwards == exact.cost.backwards


@pytest.mark.parametrize(
    ("precision", "convert", "cure"),
    [
        ("fp8", None, "bf16"),
        ("tf32", None, "GPU"),
        ("bf16", torch.float64, "float64"),
        ("bf16", torch.float16, "float16"),
    ],
)
def test_what_cannot_be_done_is_refused(precision: Any, convert: torch.dtype | None, cure: str) -> None:
    model, x, y = linear(torch.ones(3))
    with pytest.raises(InputError, match=cure):
        evaluate(model.to(convert), x, y, {"pgd": PGD}, precision=precision)


def test_a_model_without_parameters_may_be_rounded() -> None:
    model = nn.Flatten()
    x = torch.rand(8, 1, 1, 3)
    found = evaluate(model, x, model(x).argmax(1), {"pgd": PGD}, precision="bf16", checks=False)
    assert 0 < found.worst.correct < 8 or found.clean.correct == 8
    assert isinstance(attacks.fast_inference(model, precision="bf16"), RoundedModel)
