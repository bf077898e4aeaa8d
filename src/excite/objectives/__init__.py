"""What a training step minimises: pure functions (model, x, y) -> loss, usable in any loop.

Each adversarial one is also an object with its options set, which `OBJECTIVES` makes for experiment files: it attacks
in `perturb`, and its `loss_at` what that found is a function of the parameters alone (`frozen`).
What others need to know is on the object: its title, the passes of a step, whether it needs pseudo-labels.
To add one: a file, a line in `OBJECTIVES`, a row in tests/objectives/test_every_objective.py.
"""

from collections.abc import Callable

from excite.objectives.awp import AWP, awp_loss
from excite.objectives.pgd_at import PGDAT, pgd_at_loss
from excite.objectives.protocol import NamedObjective, Objective, frozen
from excite.objectives.rst import RST, rst_loss
from excite.objectives.standard import Standard, standard_loss
from excite.objectives.trades import Trades, trades_loss

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
