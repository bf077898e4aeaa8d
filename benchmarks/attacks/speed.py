"""How much faster are our attacks than foolbox and pyautoattack? (15 minutes)"""

from collections.abc import Callable
from functools import partial

from benchmarks.attacks.direct import EPS, STEP, direct_autoattack, foolbox_pgd, plain_pgd
from benchmarks.attacks.networks import gradient, resnet18, test_images, trained
from benchmarks.attacks.timing import in_turn, print_ratios
from excite import attacks
from excite.attacks import fast_inference
from excite.evaluation import evaluate


def main(only: str) -> None:
    for name, model, count in (("ResNet-18", resnet18(), 32), ("ResNet-20", trained("resnet20", epochs=2), 100)):
        x, y = test_images(count)
        pgd = attacks.create("pgd", eps=EPS, step=STEP)
        few = test_images(24)
        shorter = attacks.create("autoattack", eps=EPS, iterations=10, queries=500)
        cases: dict[str, dict[str, Callable[[], object]]] = {
            f"{name}, PGD-20 on {count} images": {
                "foolbox": partial(foolbox_pgd, model, x, y),
                "ten plain lines": partial(plain_pgd, model, x, y),
                "ours, all examples to the end": partial(attacks.pgd, model, x, y, eps=EPS, step=STEP),
                "ours, without fooled examples": partial(pgd, model, x, y, None),
                "limit: 20 gradients of the fast model": partial(gradient, fast_inference(model), x, y, times=20),
            },
            f"{name}, a tenth of AutoAttack standard on 24 images": {
                "pyautoattack": partial(direct_autoattack(None, shorter=True), model, *few),
                "ours": partial(evaluate, model, *few, {"attack": shorter}, batch_size=24, checks=False),
            },
        }
        for title, candidates in cases.items():
            if only in title:
                print_ratios(title, in_turn(candidates, rounds=2))
