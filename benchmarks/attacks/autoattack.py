"""How much faster is AutoAttack than the package, on networks that are not robust and on robust ones?"""

import time

import torch

from benchmarks.attacks.direct import direct_autoattack
from benchmarks.attacks.networks import resnet18, robust_resnet8, test_images
from benchmarks.attacks.timing import print_ratios
from excite import attacks
from excite.evaluation import evaluate


def main(only: str) -> None:
    for name, model, eps, count in (
        ("ResNet-18, not robust,", resnet18, 8 / 255, 8),
        ("ResNet-18, not robust,", resnet18, 4 / 255, 8),
        ("ResNet-8, adversarially trained,", robust_resnet8, 2 / 255, 12),
    ):
        title = f"{name} AutoAttack standard at {255 * eps:g}/255, {count} images"
        if only not in title:
            continue
        network, (x, y) = model(), test_images(count)
        began = time.process_time()
        theirs = direct_autoattack(None, eps=eps)(network, x, y)
        halfway = time.process_time()
        attack = attacks.create("autoattack", eps=eps)
        ours = evaluate(network, x, y, {"attack": attack}, batch_size=count, checks=False)
        ended = time.process_time()
        print_ratios(title, {"pyautoattack": halfway - began, "ours": ended - halfway})
        with torch.no_grad():
            right = (network(theirs).argmax(1) == y).numpy()
        different = int((right != ours.outcomes("attack")).sum())
        print(
            f"  {ours.clean.correct} correct, {ours.worst.correct} robust; different outcomes: {different}",
            flush=True,
        )
