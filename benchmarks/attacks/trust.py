"""How much do the trust checks add to the cost of an evaluation?"""

import time
from functools import partial

from torch import nn

from benchmarks.attacks.networks import robust_resnet8, test_images, trained
from excite import attacks
from excite.attacks import Attack
from excite.evaluation import Evaluation, evaluate


def main(only: str) -> None:
    """CPU seconds of attacks and of checks; the cost of the checks does not depend on the number of images."""
    resnet20 = partial(trained, "resnet20", epochs=2)
    for name, network, images, attack in (
        ("ResNet-20", resnet20, 1000, attacks.create("pgd", eps=1 / 255, step=1 / 255 / 8)),
        ("adversarially trained ResNet-8", robust_resnet8, 1000, attacks.create("pgd", eps=2 / 255, step=2 / 255 / 8)),
        ("ResNet-20", resnet20, 100, attacks.create("autoattack", eps=1 / 255, iterations=10, queries=500)),
    ):
        title = f"{name}, {images:,} images, {attack}"
        if only not in title:
            continue
        result, attacking, checking = attacked_and_checked(network(), attack, images)
        flags = [flag.name for flag in result.flags]
        print(f"\n{title}: {result.worst.correct} robust, flags {flags or 'none'}")
        print(f"  {attacking:.2f} s of attacks, {checking:.2f} s of checks: {checking / attacking:.1%}", flush=True)


def attacked_and_checked(model: nn.Module, attack: Attack, images: int) -> tuple[Evaluation, float, float]:
    """CPU seconds until the last batch is attacked, and after it."""
    moments = [time.process_time()]
    x, y = test_images(images)
    result = evaluate(model, x, y, {"attack": attack}, on_progress=lambda *_: moments.append(time.process_time()))
    return result, moments[-1] - moments[0], time.process_time() - moments[-1]
