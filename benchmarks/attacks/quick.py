"""Every headline ratio of our attacks in one run, as a table for the docs. (under five minutes, after the training)"""

import time
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.attacks.direct import EPS, STEP, direct_autoattack, foolbox_pgd, plain_pgd
from benchmarks.attacks.networks import gradient, resnet18, test_images
from benchmarks.attacks.strength import NETWORKS
from benchmarks.attacks.timing import in_turn
from excite import attacks
from excite.attacks import fast_inference
from excite.evaluation import evaluate
from excite.precision import Precision

Seconds = dict[str, float]


def main(only: str) -> None:
    began = time.perf_counter()
    resnet20, robust = NETWORKS["ResNet-20"](), NETWORKS["ResNet-8 PGD-AT"]()
    for title, measured in (
        ("PGD-20 at 1/255, ResNet-20, 100 images", partial(of_pgd, resnet20, 100, rounds=2)),
        ("PGD-20 at 1/255, ResNet-18, 16 images", partial(of_pgd, resnet18(), 16, rounds=1)),
        ("AutoAttack at 8/255, ResNet-18, 8 images", partial(of_autoattack, resnet18(), 8)),
        ("AutoAttack at 8/255, ResNet-8 trained with PGD-AT, 16 images", partial(of_autoattack, robust, 16)),
    ):
        if only in title:
            print_rows(title, measured())
    print(f"\n{time.perf_counter() - began:.0f} s in all")


def of_pgd(model: nn.Module, count: int, *, rounds: int) -> Seconds:
    x, y = test_images(count)
    attack = attacks.create("pgd", eps=EPS, step=STEP)
    exact, rounded = fast_inference(model), fast_inference(model, precision="bf16")
    to_the_end = partial(attacks.pgd, x=x, y=y, eps=EPS, step=STEP)
    return in_turn(
        {
            "foolbox 3.3.4": partial(foolbox_pgd, model, x, y),
            "ten plain lines of torch": partial(plain_pgd, model, x, y),
            "ours, every image to the end": partial(to_the_end, exact),
            "the same in bfloat16": partial(to_the_end, rounded),
            "ours, fooled images leave": partial(attack, exact, x, y, None),
            "the same in bfloat16, fooled images leave": partial(attack, rounded, x, y, None),
            "20 gradients of the fast model alone": partial(gradient, exact, x, y, times=20),
            "20 gradients in bfloat16": partial(gradient, rounded, x, y, times=20),
        },
        rounds=rounds,
    )


def of_autoattack(model: nn.Module, count: int) -> Seconds:
    """Also print how many images withstand; the package's images are judged by the same model."""
    x, y = test_images(count)
    robust = dict[str, int]()

    def package() -> None:
        robust["pyautoattack"] = judged(model, direct_autoattack(None, eps=8 / 255)(model, x, y), y)

    def ours(precision: Precision) -> None:
        attack = {"attack": attacks.create("autoattack", eps=8 / 255)}
        found = evaluate(model, x, y, attack, batch_size=count, checks=False, precision=precision)
        robust[f"ours in {precision}"] = found.worst.correct

    seconds = in_turn(
        {"pyautoattack 0.2.0": package, "ours": partial(ours, "float32"), "ours in bfloat16": partial(ours, "bf16")},
        rounds=1,
    )
    print(f"\nrobust of {count}: {robust}")
    return seconds


def judged(model: nn.Module, x_adv: Tensor, y: Tensor) -> int:
    with torch.no_grad():
        return int((model(x_adv).argmax(1) == y).sum())


def print_rows(title: str, seconds: Seconds) -> None:
    reference = next(iter(seconds.values()))
    print(f"\n| {title} | seconds | times as fast |\n|---|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} | {reference / value:.2f} |", flush=True)
