"""Does a ReLU on the logits, as in the authors' LeNet-5, make the network robust or only hide its gradients?

    python benchmarks/lenet_masking.py          six networks, 10 epochs of MNIST each (about ten minutes on 2 cores)

Each network is attacked with PGD-40 (three losses), Square, and PGD-40 on the same weights without the last ReLU, which
an attacker who knows the network can always remove. If only the first attack leaves a high accuracy, gradients are
masked.
"""

import argparse
import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import attacks, data
from excite.attacks import PGD
from excite.attacks.projected_gradient import LossName
from excite.attacks.protocol import AttackFunction
from excite.evaluation import evaluate
from excite.models.lenet import LeNet5

SEED = 25  # the paper's


def train(*, activate_logits: bool, rate: float, epochs: int) -> LeNet5:
    """Plain SGD with batch size 64, as in the paper."""
    torch.manual_seed(SEED)
    model = LeNet5(activate_logits=activate_logits)
    digits = data.load("mnist").train
    x, y = digits.floats(), digits.labels
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x)), 64):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def without_last_relu(model: LeNet5) -> LeNet5:
    bare = copy.deepcopy(model)
    bare.activate_logits = False
    return bare


class CraftedElsewhere:
    """PGD on one model; the examples are then classified by another."""

    def __init__(self, source: nn.Module, attack: PGD) -> None:
        self.source = source
        self.attack = attack

    def __call__(self, _model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.attack(self.source, x, y, generator)


def zero_gradients(model: nn.Module, x: Tensor, y: Tensor) -> float:
    images = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model(images), y, reduction="sum"), images)
    return float((gradient.flatten(1).abs().amax(1) == 0).double().mean())


def report(model: LeNet5, name: str, x: Tensor, y: Tensor) -> None:
    print(f"\n{name}: zero input gradient on {zero_gradients(model, x, y):.1%} of the examples", flush=True)
    bare = without_last_relu(model)
    for eps in (0.1, 0.2, 0.3):
        losses: tuple[LossName, ...] = ("cross_entropy", "margin", "dlr")
        pgd = {str(loss): PGD(eps=eps, step=0.01, steps=40, random_start=True, loss=loss) for loss in losses}
        all_attacks: dict[str, AttackFunction] = {
            **pgd,
            "square": attacks.create("square", eps=eps, queries=500),
            "without last ReLU": CraftedElsewhere(bare, pgd["margin"]),
        }
        result = evaluate(model, x, y, all_attacks, batch_size=500, checks=False)
        figures = ", ".join(f"{attack} {accuracy.value:.3f}" for attack, accuracy in result.robust.items())
        print(f"  ε = {eps}: clean {result.clean.value:.3f}, {figures}, worst {result.worst.value:.3f}", flush=True)
    usual = evaluate(model, x, y, {"PGD": pgd["cross_entropy"]}, batch_size=500)  # the usual evaluation
    print(f"  flags: {'; '.join(flag.name for flag in usual.flags) or 'none'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=500)
    arguments = parser.parse_args()
    test = data.load("mnist").test
    x, y = test.floats()[: arguments.examples], test.labels[: arguments.examples]
    for activate_logits in (False, True):
        for rate in (0.1, 0.45, 0.6):
            model = train(activate_logits=activate_logits, rate=rate, epochs=arguments.epochs)
            report(model, f"{'ReLU on the' if activate_logits else 'plain'} logits, rate {rate}", x, y)


if __name__ == "__main__":
    main()
