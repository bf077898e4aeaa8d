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
from excite import attacks, data, models, objectives, schedules
from excite.errors import InputError
from excite.training import train

X, Y = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
BATCHES = [(X[:4], Y[:4]), (X[4:], Y[4:])]


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model().parameters(), lr=0.1, **options)


def sgd_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def split(labels: Any = (0, 1, 0, 1)) -> data.Split:
    return data.Split(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), torch.tensor(labels))


def dataset(train_labels: Any = (0, 1, 0, 1), test_labels: Any = (0, 1), classes: int = 2) -> data.Dataset:
    return data.Dataset("mine", split(train_labels), split(test_labels), classes)


def judge(x: Any = X, y: Any = Y, attack: Any = "pgd", **options: Any) -> object:
    return excite.evaluate(model(), x, y, attack, **{"eps": 0.1, **options})


def look(build: Any, **options: Any) -> object:
    return excite.find_learning_rate(build, BATCHES, cross_entropy, **options)


def search(losses: Any = None, **options: Any) -> object:
    return excite.find_edge(lambda _rate, _draw, _steps: iter(losses or [2.3] * 500), **{"budget": 900, **options})


def steps(rates: list[float], schedule: Callable[[int], float]) -> object:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return schedules.attach(torch.optim.SGD(groups), schedule)


def rescaled(multiple: Any, **options: Any) -> object:
    estimate = excite.LipschitzEstimate(4.0, (4.0, 4.0), "stated", True, "a test")
    return excite.rescale_scheduler(torch.optim.lr_scheduler.StepLR(sgd(), 1), estimate, multiple, **options)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    # a radius that is none
    "pgd eps=2": (lambda: attacks.create("pgd", eps=2, step=0.1), "pixels lie in"),
    "pgd eps=8": (lambda: attacks.create("pgd", eps=8, step=0.1), "8/255"),
    "pgd eps=nan": (lambda: attacks.create("pgd", eps=math.nan, step=0.1), "eps"),
    "pgd eps=-1": (lambda: attacks.create("pgd", eps=-1, step=0.1), "eps"),
    "pgd() eps=8": (lambda: attacks.pgd(model(), X, Y, eps=8, step=0.1), "8/255"),
    "autoattack eps=8": (lambda: attacks.create("autoattack", eps=8), "8/255"),
    "square eps=nan": (lambda: attacks.create("square", eps=math.nan), "eps"),
    "evaluate eps=8": (lambda: judge(eps=8), "8/255"),
    "evaluate eps=nan": (lambda: judge(eps=math.nan), "8/255"),
    "evaluate no eps": (lambda: judge(eps=None), 'also needs "eps"'),
    "trades eps=8": (lambda: objectives.Trades(eps=8.0), "8/255"),
    "pgd_at eps=nan": (lambda: objectives.PGDAT(eps=math.nan), "eps"),
    # what an attack may be
    "a list of nothing known": (lambda: judge(attack=[3]), "pass a function"),
    "an unknown name": (lambda: judge(attack="pdg"), 'did you mean "pgd"'),
    "a far name": (lambda: judge(attack="zzz"), "Known: pgd"),
    "a class": (lambda: judge(attack=attacks.PGD), "is a class"),
    "an unknown norm": (lambda: attacks.create("pgd", eps=0.1, step=0.1, norm="l7"), "linf"),
    "an unknown loss": (lambda: attacks.create("pgd", eps=0.1, step=0.1, loss="hinge"), "cross_entropy"),
    "a wrong option": (lambda: attacks.create("pgd", eps=0.1, stepps=3), 'did you mean "step'),
    # images and labels
    "text": (lambda: judge(torch.randint(9, (8, 16))), "embeddings"),
    "strings": (lambda: judge(np.array(["a"])), "must be numbers"),
    "no labels": (lambda: judge(X, None), "as a DataLoader does"),
    "fractions as labels": (lambda: judge(X, Y / 2), "class numbers"),
    "a label too large": (lambda: judge(X, Y + 9), "0 to 2"),
    "pixels up to 255": (lambda: judge(255 * X), "Divide by 255"),
    "one class": (lambda: dataset((0, 0, 0), (0,), classes=2), "class"),
    "one image": (lambda: dataset((1,), (1,)), "class"),
    "an unseen class": (lambda: dataset((0, 1, 0), (0, 2), classes=3), "class 2"),
    "2.0 classes": (lambda: dataset(classes=2.0), "num_classes"),  # type: ignore[arg-type]
    # seeds
    "train seed=-1": (
        lambda: train(
            model(),
            split(),
            objectives.standard_loss,
            sgd(),
            schedules.constant(0.1),
            epochs=1,
            batch_size=2,
            seed=-1,
        ),
        "seed",
    ),
    "evaluate seed=-1": (lambda: judge(seed=-1), "seed"),
    "find_learning_rate seed=-1": (lambda: look(model, seed=-1), "seed"),
    "autoattack seed=-1": (lambda: attacks.create("autoattack", eps=0.1, seed=-1), "seed"),
    # a search for the edge that cannot end or begin
    "start=0": (lambda: search(start=0.0), "start"),
    "budget=0": (lambda: search(budget=0), "budget"),
    "budget=2e3": (lambda: search(budget=2e3), "budget"),
    "steps=30.0": (lambda: search(steps=30.0), "steps"),
    "start='0.1'": (lambda: search(start="0.1"), "start"),
    "a float for a budget": (lambda: look(model, budget=200.0), "budget"),
    "clipping to -1": (lambda: look(model, clip_grad_norm=-1.0), "clip_grad_norm"),
    "clipping to 0": (lambda: look(model, clip_grad_norm=0), "clip_grad_norm"),
    "seconds=nan": (lambda: look(model, seconds=math.nan), "seconds"),
    "losses that are NaN": (lambda: search([math.nan] * 500), "first loss"),
    # factories
    "a frozen model": (lambda: look(model().requires_grad_(False)), "gradient"),
    "a factory of frozen models": (lambda: look(lambda: model().requires_grad_(False)), "gradient"),
    "a model of no weights": (lambda: look(nn.Flatten()), "requires a gradient"),
    "a factory of no model": (lambda: look(lambda: 3), "model"),
    # schedules and groups
    "no group with a rate": (lambda: steps([0.0, 0.0], schedules.constant(0.4)), "not 0"),
    "a rate for a schedule": (lambda: steps([0.1], 0.1), "schedules.constant"),  # type: ignore[arg-type]
    # shares
    "threshold=2": (lambda: excite.choose_batch_size({32: 1.0}, {32: 0.5}, 2), "between 0 and 1"),
    "threshold=nan": (lambda: excite.choose_batch_size({32: 1.0}, {32: 0.5}, math.nan), "between 0 and 1"),
    # optimizers
    "LBFGS": (
        lambda: excite.Recorder(net := model(), torch.optim.LBFGS(net.parameters())),
        "slopes_per_epoch=0",
    ),
    "an optimizer's name": (lambda: look(model, optimizer="sgd"), "optimizer"),
    # another kind of thing
    "a trace that is none": (lambda: excite.acuteness(3), "pass a Trace"),  # type: ignore[arg-type]
    "no trace": (lambda: excite.estimate_lipschitz(None), "needs"),
    "a method that is none": (lambda: excite.estimate_lipschitz(None, method=3), "Known"),  # type: ignore[arg-type]
    "a path for a model": (lambda: excite.evaluate("net.pt", X, Y, "pgd", eps=0.1), "torch module"),  # type: ignore[arg-type]
    "a class for a model": (lambda: excite.evaluate(nn.Linear, X, Y), "torch module"),  # type: ignore[arg-type]
    "a name for a model": (lambda: attacks.pgd("lenet5", X, Y, eps=0.1, step=0.1), "torch module"),  # type: ignore[arg-type]
    "no model to record": (lambda: excite.Recorder(3), "torch module"),  # type: ignore[arg-type]
    "no optimizer": (lambda: excite.Recorder(model(), 3), "an optimizer of torch"),  # type: ignore[arg-type]
    "less than no slopes": (lambda: excite.Recorder(net := model(), sgd_of(net), slopes_per_epoch=-1), "at least 0"),
    "a seed below zero": (lambda: excite.Recorder(net := model(), sgd_of(net), seed=-1), "seed"),
    "less than no curvatures": (lambda: excite.Recorder(net := model(), sgd_of(net), curvature_every=-1), "at least 0"),
    "curvatures by no iteration": (
        lambda: excite.Recorder(net := model(), sgd_of(net), probe=(X, Y), curvature_every=1, curvature_iterations=0),
        "curvature_iterations is 0",
    ),
    "epochs of half steps": (
        lambda: excite.Recorder(net := model(), sgd_of(net), steps_per_epoch=2.5),  # type: ignore[arg-type]
        "steps_per_epoch",
    ),
    "a probe without targets": (lambda: excite.Recorder(net := model(), sgd_of(net), probe=X), r"is \(x, y\)"),  # type: ignore[arg-type]
    "a loader for a probe": (lambda: excite.Recorder(net := model(), sgd_of(net), probe=BATCHES), r"is \(x, y\)"),  # type: ignore[arg-type]
    "multiple=-1": (lambda: rescaled(-1), "multiple is -1; it must be a finite number above 0"),
    "multiple=0": (lambda: rescaled(0), "multiple is 0; it must be a finite number above 0"),
    "multiple=nan": (lambda: rescaled(math.nan), "multiple is nan; it must be a finite number above 0"),
    "horizon=2.5": (lambda: rescaled(1, horizon=2.5), "horizon"),
    "no scheduler": (lambda: excite.rescale_scheduler(3, 1.0), "scheduler"),  # type: ignore[type-var,arg-type]
    "a number for an estimate": (
        lambda: excite.rescale_scheduler(torch.optim.lr_scheduler.StepLR(sgd(), 1), 10.0),  # type: ignore[arg-type]
        "a LipschitzEstimate",
    ),
    "no loss": (lambda: excite.find_learning_rate(model, BATCHES, 3), "output, target"),  # type: ignore[arg-type]
    "no batches": (lambda: excite.find_learning_rate(model, [], cross_entropy), "batch"),
    "no vectors": (lambda: excite.certificate(torch.zeros(0), torch.zeros(0), torch.zeros(0)), "entries"),
    "vectors of other lengths": (
        lambda: excite.certificate(torch.zeros(3), torch.zeros(4), torch.zeros(3)),
        "3, 4 and 3",
    ),
    "a vector that is none": (lambda: excite.certificate(None, X, X), "a tensor"),  # type: ignore[arg-type]
    "batches of text": (lambda: judge(batch_size="x"), "batch_size"),
    "batches of -1": (lambda: judge(batch_size=-1), "at least 1"),
    "no images": (lambda: judge(X[:0], Y[:0]), "at least 1"),
    "images of NaN": (lambda: judge(X * math.nan), "0, 1"),
    "an evaluation that is not there": (lambda: excite.Evaluation.load("nowhere.json"), "Save one there"),
    "a model of no classes": (lambda: models.create("lenet5", num_classes=0, input_shape=(1, 28, 28)), "class"),
    "a model of tiny images": (lambda: models.create("lenet5", input_shape=(1, 2, 2)), "2"),
    "a model by a number": (lambda: models.create(3), "Known"),  # type: ignore[arg-type]
    "a data set by a number": (lambda: data.load(3), "Known"),  # type: ignore[arg-type]
    "fewer labels than images": (lambda: data.from_tensors((255 * X).byte(), Y[:3], X, Y, name="mine"), "label"),
    "a schedule of words": (lambda: schedules.step("fast", milestones=[1]), "rate"),  # type: ignore[arg-type]
    "a rate of NaN": (lambda: schedules.constant(math.nan), "rate"),
    "a factor below zero": (lambda: schedules.exponential(0.1, decay=-1), "decay"),
    "no epochs": (lambda: schedules.cosine(0.1, epochs=0), "epochs"),
    "no sizes to choose from": (lambda: excite.choose_batch_size({}, {}, 0.5), "batch size"),
    "other sizes": (lambda: excite.choose_batch_size({32: 1.0}, {64: 0.5}, 0.5), "same"),
    "a beta of NaN": (lambda: objectives.Trades(beta=math.nan), "beta"),
    "a beta of text": (lambda: objectives.Trades(beta="6"), "beta is '6'; it must be a number"),  # type: ignore[arg-type]
    "a gamma of text": (lambda: objectives.AWP(gamma="1"), "gamma is '1'; it must be a number"),  # type: ignore[arg-type]
    "a weight of text": (
        lambda: objectives.RST(unlabelled_weight="1"),  # type: ignore[arg-type]
        "unlabelled_weight is '1'; it must be a number",
    ),
    "no steps": (lambda: objectives.Trades(steps=-1), "steps"),
    "an unknown benchmark": (lambda: excite.benchmark(model(), eps=0.1, dataset="imagenet"), "imagenet"),
    "another model's optimizer": (lambda: excite.Recorder(model(), sgd()), r"model\.parameters"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_argument_is_refused_with_the_cure(case: str) -> None:
    call, cure = CASES[case]
    with pytest.raises(InputError, match=cure):
        call()
