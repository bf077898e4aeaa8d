"""Training losses: standard, SAM, N-FGSM, PGD adversarial training, TRADES, robust self-training and AWP.

Each is a class that holds its options; an instance is a function (model, x, y) -> loss for any training loop. One that
perturbs images or weights works in two stages: `perturb` attacks, `loss_at` computes the loss there. `frozen` runs the
attack once and returns the remaining loss as a function of the parameters.

To add one: a file, a line in `OBJECTIVES`, a row in tests/objectives/test_every_objective.py.
"""

from collections.abc import Callable

from excite.objectives.adversarial import AWP, PGDAT, RST, Trades
from excite.objectives.n_fgsm import NFGSM
from excite.objectives.protocol import NamedObjective, Objective, Standard, frozen, standard_loss
from excite.objectives.sharpness import SAM

__all__ = [
    "AWP",
    "NFGSM",
    "OBJECTIVES",
    "PGDAT",
    "RST",
    "SAM",
    "NamedObjective",
    "Objective",
    "Standard",
    "Trades",
    "frozen",
    "standard_loss",
]

OBJECTIVES: dict[str, Callable[..., NamedObjective]] = {
    "standard": Standard,
    "sam": SAM,
    "n_fgsm": NFGSM,
    "pgd_at": PGDAT,
    "trades": Trades,
    "rst": RST,
    "awp": AWP,
}
