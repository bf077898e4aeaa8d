"""Is the outcome of every example the same as with a direct call of the package? (over an hour)"""

import time

import numpy as np
import torch
from torch import nn

from benchmarks.attacks.direct import EPS, STEP, Direct, direct_autoattack, plain_pgd
from benchmarks.attacks.networks import resnet18, test_images, trained
from excite import attacks
from excite.attacks import Attack
from excite.evaluation import evaluate


def main(only: str) -> None:
    ours = {member: attacks.create(member, eps=EPS) for member in ("apgd-ce", "apgd-t")}
    standard = attacks.create("autoattack", eps=EPS)
    resnet8 = trained("resnet8", epochs=6)
    cases: list[tuple[str, nn.Module, int, Attack, Direct]] = [
        ("ResNet-18 PGD-20", resnet18(), 200, attacks.create("pgd", eps=EPS, step=STEP), plain_pgd),
        ("ResNet-8 standard", resnet8, 200, standard, direct_autoattack(None)),
        ("ResNet-18 APGD-CE", resnet18(), 100, ours["apgd-ce"], direct_autoattack(["apgd-ce"])),
        ("ResNet-18 APGD-T", resnet18(), 100, ours["apgd-t"], direct_autoattack(["apgd-t"])),
        ("ResNet-18 standard", resnet18(), 24, standard, direct_autoattack(None)),
    ]
    for name, model, count, attack, direct in cases:
        if only not in name:
            continue
        x, y = test_images(count)
        began = time.perf_counter()
        evaluation = evaluate(model, x, y, {"attack": attack}, batch_size=count, checks=False)
        halfway = time.perf_counter()
        x_adv = direct(model, x, y)
        with torch.no_grad():
            right = model(x_adv).argmax(1) == y
        ended = time.perf_counter()
        different = np.flatnonzero(right.numpy() != evaluation.outcomes("attack")).tolist()
        print(
            f"{name}, {count} images: clean {evaluation.clean.value:.1%}, robust {evaluation.worst.value:.1%}, direct "
            f"{float(right.float().mean()):.1%}, different outcomes: {different or 'none'}; "
            f"{halfway - began:.0f} s, direct {ended - halfway:.0f} s",
            flush=True,
        )
