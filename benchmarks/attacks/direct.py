"""The same attacks without excite: ten plain lines, foolbox, and the AutoAttack package as documented."""

from collections.abc import Callable

import pyautoattack
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

EPS, STEP = 1 / 255, 0.1 / 255
Direct = Callable[[nn.Module, Tensor, Tensor], Tensor]


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x_adv = x.clone()
    for _ in range(20):
        x_adv.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(x_adv), y, reduction="sum"), x_adv)
        with torch.no_grad():
            x_adv = (x + (x_adv + STEP * gradient.sign() - x).clamp(-EPS, EPS)).clamp(0, 1)
    return x_adv.detach()


def direct_autoattack(members: list[str] | None, *, eps: float = EPS, shorter: bool = False) -> Direct:
    """Call the package as documented; `shorter` uses a tenth of its iterations and queries."""

    def run(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        version = "standard" if members is None else "custom"
        adversary = pyautoattack.AutoAttack(model, attacks=members, eps=eps, seed=0, version=version)
        adversary.apgd.n_restarts = 1  # "custom" has five by default
        if shorter:
            for attack in (adversary.apgd, adversary.apgd_targeted):
                attack.n_iter = 10
                attack.n_iter_2, attack.n_iter_min, attack.size_decr = 2, 1, 1
            adversary.fab.n_iter = 10
            adversary.square.n_queries = 500
        x_adv: Tensor = adversary.run_standard_evaluation(x, y, batch_size=len(x))[0]
        return x_adv

    return run


def foolbox_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=20, random_start=False)
    x_adv: Tensor = attack.run(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilon=EPS)
    return x_adv
