"""How much does a step of adversarial training cost, in standard steps, and compared with a textbook loop?

    python benchmarks/adversarial_training.py steps      PGD-AT-10 and TRADES-10, ours and textbook (10 minutes)
    python benchmarks/adversarial_training.py options    an attack's pass folded, in channels_last, bfloat16, compiled

Random images with CIFAR-10 shapes. CPU time of one thread, because other work on the machine affects it little. Every
round measures all cases in turn, and the median of the rounds counts. The batch is smaller than the usual 128 to suit a
CPU, so fixed costs weigh a little more.

A standard step is forward, backward and SGD in channels_last, as in our loop. The textbook loop keeps NCHW and attacks
the model itself in eval mode, with gradients for the images only and the last iterate. Its TRADES computes clean
probabilities once (the authors' code does so at every attack step).
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from excite import models
from excite.attacks import fast_inference
from excite.attacks.fast_model import FastModel, Refolded, fold
from excite.objectives import PGDAT, Objective, Trades, standard_loss

EPS, STEP, STEPS, BETA = 8 / 255, 0.007, 10, 6.0
MODELS = {"ResNet-18": "resnet18", "WRN-16-4": "wrn-16-4"}


def textbook_attack(loss: Callable[[Tensor], Tensor], x: Tensor, x_adv: Tensor) -> Tensor:
    for _ in range(STEPS):
        x_adv = x_adv.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x_adv), x_adv)
        x_adv = x_adv.detach() + STEP * gradient.sign()
        x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
    return x_adv


def textbook_pgd_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    x_adv = textbook_attack(lambda point: cross_entropy(model(point), y), x, x)
    model.train()
    return cross_entropy(model(x_adv), y)


def textbook_trades(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        clean = softmax(model(x), dim=1)

    def divergence(point: Tensor) -> Tensor:
        return kl_div(log_softmax(model(point), dim=1), clean, reduction="sum")

    x_adv = textbook_attack(divergence, x, x + 0.001 * torch.randn_like(x))
    model.train()
    logits = model(x)
    robust = kl_div(log_softmax(model(x_adv), dim=1), softmax(logits, dim=1), reduction="batchmean")
    return cross_entropy(logits, y) + BETA * robust


class Loop:
    """A model that is trained with one objective."""

    def __init__(
        self, model: nn.Module, objective: Objective, x: Tensor, y: Tensor, layout: torch.memory_format
    ) -> None:
        self.model = copy.deepcopy(model).to(memory_format=layout).train()  # type: ignore[call-overload]
        self.x, self.y, self.objective = x.contiguous(memory_format=layout), y, objective
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.objective(self.model, self.x, self.y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def in_turn(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each candidate, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, run in candidates.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def steps(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> None:
    ours = partial(Loop, model, x=x, y=y, layout=torch.channels_last)
    textbook = partial(Loop, model, x=x, y=y, layout=torch.contiguous_format)
    seconds = in_turn(
        {
            "standard": ours(objective=standard_loss),
            "standard, NCHW": textbook(objective=standard_loss),
            "PGD-AT-10, textbook": textbook(objective=textbook_pgd_at),
            "PGD-AT-10": ours(objective=PGDAT()),
            "TRADES-10, textbook": textbook(objective=textbook_trades),
            "TRADES-10": ours(objective=Trades()),
        },
        rounds,
    )
    for name, value in seconds.items():
        against = seconds.get(f"{name}, textbook")
        gain = f"   the textbook step takes {against / value:.2f}× as long" if against else ""
        print(f"  {name:24} {value:7.2f} s  {value / seconds['standard']:6.2f} standard steps{gain}", flush=True)


def options(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> None:
    model.eval()
    x_last = x.contiguous(memory_format=torch.channels_last)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    refolded = Refolded()
    fast, compiled = refolded(last, x_last), fast_inference(last)
    compiled.compile()
    seconds = in_turn(
        {
            "the model, NCHW": partial(input_gradient, FastModel(model), x, y),
            "the model, channels_last": partial(input_gradient, FastModel(last), x_last, y),
            "folded, channels_last": partial(input_gradient, fast, x_last, y),
            "and bfloat16": partial(in_bfloat16, fast, x_last, y),
            "and torch.compile": partial(input_gradient, compiled, x_last, y),
            "folding anew (tracing)": partial(fold, last),
            "refolding (weights only)": partial(refolded, last, x_last),
        },
        rounds,
    )
    reference = seconds["the model, NCHW"]
    for name, value in seconds.items():
        print(f"  {name:26} {value:8.4f} s  {value / reference:6.3f} of the first", flush=True)


def input_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model(x), y, reduction="sum"), x)
    return gradient


def in_bfloat16(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return input_gradient(model, x, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "options"])
    parser.add_argument("--model", choices=list(MODELS), help="only this one")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; idle ones use CPU time, too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for title in [arguments.model] if arguments.model else MODELS:
        torch.manual_seed(0)
        network = models.create(MODELS[title])
        images, labels = torch.rand(arguments.batch, 3, 32, 32), torch.randint(0, 10, (arguments.batch,))
        print(f"{title}, batch {arguments.batch}, {torch.get_num_threads()} threads", flush=True)
        {"steps": steps, "options": options}[arguments.what](network, images, labels, arguments.rounds)
