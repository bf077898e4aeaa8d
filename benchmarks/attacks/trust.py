"""What do the trust checks add to an evaluation of 1,000 images?"""

import time
from functools import partial

from torch import nn

from benchmarks.attacks.networks import robust_resnet8, test_images, trained
from excite import attacks
from excite.attacks import Attack
from excite.evaluation import Evaluation, evaluate


def main(only: str) -> None:
    """The share of an evaluation that its trust checks are."""
    for name, network, eps in (
        ("ResNet-20", partial(trained, "resnet20", epochs=2), 1 / 255),
        ("adversarially trained ResNet-8", robust_resnet8, 2 / 255),
    ):
        if only not in name:
            continue
        attack = attacks.create("pgd", eps=eps, step=eps / 8)
        result, attacking, checking = attacked_and_checked(network(), attack, 1000)
        print(f"\n{name}, 1,000 images, {attack}: {result.worst.correct} withstand, flags {result.warnings or 'none'}")
        print(f"  {attacking:.2f} s of attacks, {checking:.2f} s of checks: {checking / attacking:.1%}", flush=True)


def attacked_and_checked(model: nn.Module, attack: Attack, images: int) -> tuple[Evaluation, float, float]:
    """CPU seconds until the last batch is judged, and after it."""
    moments = [time.process_time()]
    x, y = test_images(images)
    result = evaluate(model, x, y, {"attack": attack}, on_progress=lambda *_: moments.append(time.process_time()))
    return result, moments[-1] - moments[0], time.process_time() - moments[-1]
