"""Bad arguments of the main functions, case by case: an InputError that names the cure, never a raw exception."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import excite
from excite import attacks, data, objectives, schedules
from excite.errors import InputError
from excite.training import train

X, Y = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
BATCHES = [(X[:4], Y[:4]), (X[4:], Y[4:])]


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def sized(width: int) -> nn.Module:
    return nn.Linear(width, 3)


def sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model().parameters(), lr=0.1, **options)


def split(labels: Any = (0, 1, 0, 1)) -> data.Split:
    return data.Split(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), torch.tensor(labels))


def dataset(train_labels: Any = (0, 1, 0, 1), test_labels: Any = (0, 1), classes: int = 2) -> data.Dataset:
    return data.Dataset("mine", split(train_labels), split(test_labels), classes)


def search(losses: Any = None, **options: Any) -> object:
    return excite.find_edge(lambda _rate, _draw: iter(losses or [2.3] * 500), **{"budget": 900, **options})


def steps(rates: list[float], schedule: Callable[[int], float]) -> object:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return schedules.attach(torch.optim.SGD(groups), schedule)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    # a radius that is none
    "pgd eps=2": (lambda: attacks.create("pgd", eps=2, step=0.1), "pixels lie in"),
    "pgd eps=8": (lambda: attacks.create("pgd", eps=8, step=0.1), "8/255"),
    "pgd eps=nan": (lambda: attacks.create("pgd", eps=math.nan, step=0.1), "no radius"),
    "pgd eps=-1": (lambda: attacks.create("pgd", eps=-1, step=0.1), "no radius"),
    "pgd() eps=8": (lambda: attacks.pgd(model(), X, Y, eps=8, step=0.1), "8/255"),
    "autoattack() eps=8": (lambda: attacks.autoattack(model(), X, Y, eps=8), "8/255"),
    "square eps=nan": (lambda: attacks.create("square", eps=math.nan), "no radius"),
    "evaluate eps=8": (lambda: excite.evaluate(model(), X, Y, "pgd", eps=8), "8/255"),
    "evaluate eps=nan": (lambda: excite.evaluate(model(), X, Y, "pgd", eps=math.nan), "8/255"),
    "evaluate no eps": (lambda: excite.evaluate(model(), X, Y, "pgd"), "pass eps"),
    "trades eps=8": (lambda: objectives.create("trades", eps=8.0), "8/255"),
    "pgd_at eps=nan": (lambda: objectives.create("pgd_at", eps=math.nan), "eps"),
    # what an attack may be
    "a list of nothing known": (lambda: excite.evaluate(model(), X, Y, [3]), "pass a function"),
    "an unknown name": (lambda: excite.evaluate(model(), X, Y, "pdg", eps=0.1), 'did you mean "pgd"'),
    "a far name": (lambda: excite.evaluate(model(), X, Y, "zzz", eps=0.1), "Known: pgd"),
    "a class": (lambda: excite.evaluate(model(), X, Y, attacks.PGD, eps=0.1), "is a class"),
    "an unknown norm": (lambda: attacks.create("pgd", eps=0.1, step=0.1, norm="l7"), "linf"),
    "an unknown loss": (lambda: attacks.create("pgd", eps=0.1, step=0.1, loss="hinge"), "cross_entropy"),
    "a wrong option": (lambda: attacks.create("pgd", eps=0.1, stepps=3), 'did you mean "step'),
    # images and labels
    "text": (lambda: excite.evaluate(model(), torch.randint(9, (8, 16)), Y, "pgd", eps=0.1), "embeddings"),
    "strings": (lambda: excite.evaluate(model(), np.array(["a"]), Y, "pgd", eps=0.1), "must be numbers"),
    "no labels": (lambda: excite.evaluate(model(), X, None, "pgd", eps=0.1), "as a DataLoader does"),
    "fractions as labels": (lambda: excite.evaluate(model(), X, Y / 2, "pgd", eps=0.1), "class numbers"),
    "a label too large": (lambda: excite.evaluate(model(), X, Y + 9, "pgd", eps=0.1), "0 to 2"),
    "pixels up to 255": (lambda: excite.evaluate(model(), 255 * X, Y, "pgd", eps=0.1), "Divide by 255"),
    "one class": (lambda: dataset((0, 0, 0), (0,), classes=2), "with one class there is nothing to learn"),
    "one image": (lambda: dataset((1,), (1,)), "with one class there is nothing to learn"),
    "an unseen class": (lambda: dataset((0, 1, 0), (0, 2), classes=3), "no training image is of class 2"),
    # seeds
    "train seed=-1": (
        lambda: train(
            model(),
            split(),
            objectives.create("standard"),
            sgd(),
            schedules.constant(0.1),
            epochs=1,
            batch_size=2,
            seed=-1,
        ),
        "seed is -1",
    ),
    "evaluate seed=-1": (lambda: excite.evaluate(model(), X, Y, "pgd", eps=0.1, seed=-1), "seed"),
    "find_learning_rate seed=-1": (lambda: excite.find_learning_rate(model, BATCHES, cross_entropy, seed=-1), "seed"),
    "autoattack seed=-1": (lambda: attacks.create("autoattack", eps=0.1, seed=-1), "seed"),
    # a search for the edge that cannot end or begin
    "ratio=0.8": (lambda: search(ratio=0.8), "no option of find_edge"),
    "start=0": (lambda: search(start=0.0), "start=0.0 is no rate"),
    "budget=0": (lambda: search(budget=0), "budget"),
    "losses that are none": (lambda: search([math.nan] * 500), "before any step"),
    # factories
    "a factory with arguments": (
        lambda: excite.find_learning_rate(sized, BATCHES),
        "without arguments",
    ),
    "a factory of no model": (lambda: excite.find_learning_rate(lambda: 3, BATCHES), "model"),
    # schedules and groups
    "a schedule that fits no group": (lambda: steps([0.01, 0.1], schedules.constant(0.4)), "0.4"),
    "a rate for a schedule": (lambda: steps([0.1], 0.1), "schedules.constant"),  # type: ignore[arg-type]
    # shares
    "threshold=2": (lambda: excite.choose_batch_size({32: 1.0}, {32: 0.5}, 2), "between 0 and 1"),
    "threshold=nan": (lambda: excite.choose_batch_size({32: 1.0}, {32: 0.5}, math.nan), "between 0 and 1"),
    # optimizers
    "LBFGS": (
        lambda: excite.Recorder(net := model(), torch.optim.LBFGS(net.parameters())),
        "train with SGD",
    ),
    "another model's optimizer": (lambda: excite.Recorder(model(), sgd()), "none of this model's parameters"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_argument_is_refused_with_the_cure(case: str) -> None:
    call, cure = CASES[case]
    with pytest.raises(InputError, match=cure):
        call()
