"""What an evaluation counts, refuses, saves, and leaves as it was."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from excite import attacks
from excite.attacks.protocol import Attack, AttackFunction
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation, evaluate
from excite.evaluation.result import Cost

PGD = {"pgd": attacks.create("pgd", eps=0.02, step=0.005)}


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(288, 10)
        )
    return model.eval()


def examples(model: nn.Module, count: int = 50, wrong: int = 5) -> tuple[Tensor, Tensor]:
    """The first `wrong` labels are not what the model answers."""
    x = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y: Tensor = model(x).argmax(1)
    y[:wrong] = (y[:wrong] + 1) % 10
    return x, y


def only(*fooled: int) -> AttackFunction:
    """A pretend attack that moves a few examples, by their position in the clean set, to images known to be wrong."""

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            candidates = torch.rand(200, 3, 8, 8, generator=torch.Generator().manual_seed(2))
            answers = model(candidates).argmax(1)
        x_adv = x.clone()
        for position in fooled:
            x_adv[position] = candidates[(answers != y[position]).nonzero()[0, 0]]
        return x_adv

    return attack


def test_worst_case_is_pointwise() -> None:
    model = network()
    x, y = examples(model, 20, wrong=0)
    result = evaluate(model, x, y, {"one": only(0, 1), "two": only(1, 2, 3)}, checks=False)
    assert result.clean.correct == 20
    assert {name: accuracy.correct for name, accuracy in result.robust.items()} == {"one": 18, "two": 17}
    assert result.worst.correct == 16
    assert np.flatnonzero(result.outcomes("worst")).tolist() == list(range(4, 20))


def test_wrong_examples_are_not_attacked_and_never_robust() -> None:
    model = network()
    x, y = examples(model, 20, wrong=5)
    seen = []

    def count(_model: nn.Module, x: Tensor, _y: Tensor) -> Tensor:
        seen.append(len(x))
        return x

    result = evaluate(model, x, y, {"none": count}, batch_size=8, checks=False)
    assert seen == [8, 7]
    assert result.robust["none"].correct == result.clean.correct == 15
    assert not result.outcomes("none")[:5].any()


@pytest.mark.parametrize("checks", [False, True])
def test_a_model_that_is_never_right_has_nothing_to_attack(checks: bool) -> None:
    model = network()
    x, y = examples(model, 20, wrong=20)
    result = evaluate(model, x, y, PGD, checks=checks)
    assert result.clean.correct == result.worst.correct == 0
    assert result.robust["pgd"].correct == 0


def test_one_answer_for_every_image_is_guessing(tmp_path: Path) -> None:
    answer = nn.Linear(192, 3)
    nn.init.zeros_(answer.weight)
    nn.init.constant_(answer.bias[:1], 1.0)
    blind = nn.Sequential(nn.Flatten(), answer)
    x = torch.rand(8, 3, 8, 8)
    result = evaluate(blind, x, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]), PGD, checks=False)
    assert (result.chance, result.learned_nothing) == (3 / 8, True)
    result.save(tmp_path / "evaluation.json")
    assert Evaluation.load(tmp_path / "evaluation.json").learned_nothing
    one_more = np.arange(1000) < 101
    assert Evaluation(one_more, {}, (), Cost(), examples="", chance=0.1).learned_nothing
    assert not Evaluation(np.arange(1000) < 120, {}, (), Cost(), examples="", chance=0.1).learned_nothing
    model = network()
    assert not evaluate(model, *examples(model), {}).learned_nothing


@pytest.mark.parametrize(("right", "nothing"), [(100, False), (97, False), (95, True), (90, True)])
def test_where_most_images_are_of_one_class_few_errors_are_something_learned(right: int, nothing: bool) -> None:
    found = Evaluation(np.arange(100) < right, {}, (), Cost(), examples="", chance=0.95)
    assert found.learned_nothing is nothing


def test_gradients_are_wanted_where_there_is_an_attack() -> None:
    model = network()
    x, y = examples(model)
    attacked = evaluate(model, x, y, PGD, checks=False)
    with torch.no_grad():
        assert evaluate(model, x, y, PGD, checks=False).worst == attacked.worst
    with torch.inference_mode():
        assert evaluate(model, x, y).clean == attacked.clean
        with pytest.raises(InputError, match="inference"):
            evaluate(model, x, y, PGD)


def test_eps_zero_gives_the_clean_accuracy() -> None:
    model = network()
    x, y = examples(model)
    zero: dict[str, Attack] = {
        name: attacks.create(name, eps=0.0, **({"step": 0.1} if name == "pgd" else {})) for name in attacks.ATTACKS
    }
    result = evaluate(model, x, y, zero, checks=False)
    assert all(np.array_equal(result.outcomes(name), result.correct) for name in zero)


def test_counts_are_exact_for_an_attack_that_fools_nobody() -> None:
    model = network()
    x, y = examples(model, 20, wrong=0)
    still = {"pgd": attacks.create("pgd", eps=1e-9, step=1e-9, steps=3)}
    result = evaluate(model, x, y, still, batch_size=20, checks=False)
    # clean 20; 3 steps with gradient, the last point, the verdict
    assert (result.cost.forwards, result.cost.backwards) == (20 + 3 * 20 + 20 + 20, 3 * 20)
    assert result.cost.seconds > 0


def test_the_model_comes_back_as_it_was() -> None:
    model = network()
    x, y = examples(model, 12)
    model.train()
    model[1].eval()
    weights = model.get_parameter("5.weight")
    weights.grad = torch.ones_like(weights)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.random.get_rng_state()
    several = {name: attacks.create(name, eps=0.02, iterations=5) for name in ("apgd-ce", "fab", "fab-t")}
    evaluate(model, x, y, {**PGD, **several})
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert torch.equal(weights.grad, torch.ones_like(weights))
    assert model.get_parameter("0.weight").grad is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random_state, torch.random.get_rng_state())


def test_seeds_decide_random_attacks_and_nothing_else_does() -> None:
    model = network()
    x, y = examples(model, 60)
    # no steps: a random start is all there is
    draw = {"draw": attacks.create("pgd", eps=0.08, step=0.0, steps=0, random_start=True)}
    outcomes = []
    for seed, noise in ((0, 0), (0, 1), (1, 0)):
        torch.manual_seed(noise)
        outcomes.append(evaluate(model, x, y, draw, seed=seed, batch_size=16, checks=False).outcomes("draw"))
    assert np.array_equal(outcomes[0], outcomes[1])
    assert not np.array_equal(outcomes[0], outcomes[2])


def test_saving_and_loading_keeps_everything(tmp_path: Path) -> None:
    model = network().train()
    x, y = examples(network())
    result = evaluate(model, x, y, PGD)
    assert "train mode" in {flag.name for flag in result.flags}
    result.save(tmp_path / "evaluation.json")
    loaded = Evaluation.load(tmp_path / "evaluation.json")
    assert loaded.to_json() == result.to_json()
    assert np.array_equal(loaded.outcomes("pgd"), result.outcomes("pgd"))
    assert str(loaded) == str(result)


def test_ten_thousand_outcomes_take_a_few_kilobytes(tmp_path: Path) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    x = torch.rand(10_000, 1, 2, 2)
    evaluate(flat, x, flat(x).argmax(1), PGD, checks=False).save(tmp_path / "evaluation.json")
    assert (tmp_path / "evaluation.json").stat().st_size < 8_000


@pytest.mark.parametrize("damage", ['{"format": 99}', "{}", "[]", "not JSON", '{"format": 1, "total": 9}'])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    (tmp_path / "evaluation.json").write_text(damage)
    with pytest.raises(CorruptFileError):
        Evaluation.load(tmp_path / "evaluation.json")


def test_progress_counts_examples() -> None:
    model = network()
    x, y = examples(model, 20, wrong=5)
    told: list[tuple[int, int]] = []
    evaluate(model, x, y, PGD, batch_size=8, on_progress=lambda *at: told.append(at), checks=False)
    assert told == [(8, 15), (15, 15)]


X, Y = torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("x", "y", "cure"),
    [
        (X * 255, Y, "255"),
        (X - 0.5, Y, r"\[0, 1\]"),
        (X, Y + 10, "0 to 9"),
        (X, Y - 1, "from 0"),
        (X, Y[:3], "labels"),
        (X[:, :1], Y, "shape"),
        (X[:0], Y[:0], "1"),
    ],
)
def test_wrong_inputs_are_refused_with_the_cure(x: Tensor, y: Tensor, cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        evaluate(network(), x, y, PGD)


def test_a_model_without_rows_of_logits_is_refused() -> None:
    with pytest.raises(InputError, match="logits"):
        evaluate(nn.Flatten(0), X, Y, PGD)


class Leaps:
    """Announces a ball and leaves it."""

    eps = 0.1
    norm = "linf"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return (x + 0.2).clamp(max=1)


def test_an_attack_that_leaves_box_or_ball_has_no_verdict() -> None:
    model = network()
    x, y = examples(model, 10, wrong=0)
    with pytest.raises(InputError, match=r"eps=0\.1"):
        evaluate(model, x, y, {"leaps": Leaps()})
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        evaluate(model, x, y, {"out": lambda _model, x, _y: x + 1})
