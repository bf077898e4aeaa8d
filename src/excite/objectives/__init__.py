"""Training losses: standard, PGD adversarial training, TRADES, robust self-training and AWP.

Each is a pure function (model, x, y) -> loss for any training loop, and a class that holds its options, for experiment
files (`OBJECTIVES`). An adversarial one works in two stages: `perturb` attacks, `loss_at` computes the loss there.
`frozen` runs the attack once and returns the remaining loss as a function of the parameters.

To add one: a file, a line in `OBJECTIVES`, a row in tests/objectives/test_every_objective.py.
"""

from collections.abc import Callable

from excite.objectives.adversarial import AWP, PGDAT, RST, Trades, awp_loss, pgd_at_loss, rst_loss, trades_loss
from excite.objectives.protocol import NamedObjective, Objective, Standard, frozen, standard_loss

__all__ = [
    "AWP",
    "OBJECTIVES",
    "PGDAT",
    "RST",
    "NamedObjective",
    "Objective",
    "Standard",
    "Trades",
    "awp_loss",
    "frozen",
    "pgd_at_loss",
    "rst_loss",
    "standard_loss",
    "trades_loss",
]

OBJECTIVES: dict[str, Callable[..., NamedObjective]] = {
    "standard": Standard,
    "pgd_at": PGDAT,
    "trades": Trades,
    "rst": RST,
    "awp": AWP,
}
