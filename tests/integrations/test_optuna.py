"""A study of Optuna searches the range that an estimate gives, and every rate in it trains."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD

import excite

optuna = pytest.importorskip("optuna", reason="optuna is not installed")

INPUTS = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
BATCHES = [(x, x @ torch.ones(8, 1)) for x in torch.split(INPUTS, 32)]


def final_loss(rate: float) -> float:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = SGD(model.parameters(), rate)
    for _ in range(10):
        for x, y in BATCHES:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return mse_loss(model(INPUTS), INPUTS @ torch.ones(8, 1)).item()


def test_a_study_searches_the_space_of_an_estimate() -> None:
    estimate = excite.find_learning_rate(nn.Linear(8, 1), BATCHES, mse_loss, SGD, budget=600)
    low, high = estimate.search_space()
    assert (low, high) == (0.1 / estimate.constant, 2 / estimate.constant)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(lambda trial: final_loss(trial.suggest_float("lr", low, high, log=True)), n_trials=12)
    untrained, first = final_loss(1e-9), final_loss(low)
    assert all(low <= trial.params["lr"] <= high for trial in study.trials)
    assert all(trial.value < 0.5 * untrained for trial in study.trials)
    assert study.best_value < first
