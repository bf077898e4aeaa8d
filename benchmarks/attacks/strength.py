"""Are attacks that search in bfloat16 as strong as in float32? Verdicts of the same images, paired.

The results are kept beside the data, and a run that is stopped continues from its journals. `--only` selects cases.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import nn

from benchmarks.attacks.networks import resnet18, test_images, trained
from excite import attacks, data
from excite.attacks import Attack
from excite.evaluation import AttackResult, Cost, Evaluation, compare, evaluate
from excite.files import read_json, write_json
from excite.objectives import PGDAT, Trades
from excite.precision import Precision

EQUAL = 0.3  # the interval of the difference must lie within ± this, in points
PRECISIONS: tuple[Precision, Precision] = ("float32", "bf16")
small = partial(trained, "resnet8", epochs=8, precision="bf16")
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": resnet18,
    "ResNet-20": partial(trained, "resnet20", epochs=6, precision="bf16"),
    "ResNet-8": small,
    "ResNet-8 PGD-AT": partial(small, objective=PGDAT(steps=5, random_start=True)),
    "ResNet-8 TRADES": partial(small, objective=Trades(steps=5)),
}
CASES = [  # network, attack, radius in steps of 1/255, images, images of a block
    ("ResNet-8", "PGD-20", 1, 2000, 500),
    ("ResNet-20", "PGD-20", 1, 1000, 500),
    ("ResNet-8 PGD-AT", "PGD-20", 8, 2000, 500),
    ("ResNet-8 TRADES", "PGD-20", 8, 2000, 500),
    ("ResNet-18", "PGD-20", 1, 100, 25),
    ("ResNet-8", "AutoAttack", 4, 1000, 250),
    ("ResNet-20", "AutoAttack", 4, 500, 125),
    ("ResNet-8 PGD-AT", "AutoAttack", 8, 1000, 250),
    ("ResNet-8 TRADES", "AutoAttack", 8, 1000, 250),
    ("ResNet-18", "AutoAttack", 4, 100, 25),
]


def main(only: str) -> None:
    """Attack blocks of images in both precisions, so that a study that is cut short is still paired."""
    totals: dict[str, list[Pair]] = {}
    for network, name, level, images, block in CASES:
        title, pairs = f"{network}, {name} at {level}/255", list[Pair]()
        if only not in title:
            continue
        options = {"loss": "margin"} if name == "PGD-20" else {}
        attack = attacks.create({"PGD-20": "pgd", "AutoAttack": "autoattack"}[name], eps=level / 255, **options)
        model = NETWORKS[network]()
        for first in range(0, images, block):
            pairs.append(evaluated(f"{title} {first}-{first + block}", model, first, block, attack))
            print(f"{title}: {summary(pairs)}", flush=True)
        totals.setdefault(name, []).extend(pairs)
    for name, pairs in totals.items():
        print(f"{name}, all networks: {summary(pairs)}")


Pair = list[tuple[Evaluation, float]]  # in float32 and in bfloat16, with processor time


def evaluated(title: str, model: nn.Module, first: int, block: int, attack: Attack) -> Pair:
    x, y = (part[first:] for part in test_images(first + block))
    folder, pair = data.data_directory() / "benchmarks" / "strength", list[tuple[Evaluation, float]]()
    folder.mkdir(parents=True, exist_ok=True)
    for precision in PRECISIONS:
        file = folder / f"{title.replace('/', '-')} {precision}.json"
        if not file.exists():
            began = time.process_time()
            result = evaluate(model, x, y, {"attack": attack}, batch_size=block, checks=False, precision=precision)
            write_json(file, {"seconds": time.process_time() - began, "evaluation": result.to_json()})
        stored = read_json(file)
        pair.append((Evaluation.from_json(stored["evaluation"]), stored["seconds"]))
    return pair


def summary(pairs: Sequence[Pair]) -> str:
    (exact, slow), (rounded, fast) = map(joined, zip(*pairs, strict=True))
    found = compare(exact, rounded, "attack")
    low, high = (100 * bound for bound in found.interval)
    equal = "equal" if max(-low, high) <= EQUAL else "not shown to be equal"
    return (
        f"{found.total} images, clean {100 * exact.clean.value:.1f}, robust {100 * exact.worst.value:.2f} and "
        f"{100 * rounded.worst.value:.2f}, right only under float32 {found.only_first}, only under bf16 "
        f"{found.only_second}, difference {100 * found.difference:+.2f} ({low:+.2f} to {high:+.2f}), {equal}; "
        f"{slow / fast:.2f} times as fast"
    )


def joined(parts: Sequence[tuple[Evaluation, float]]) -> tuple[Evaluation, float]:
    """One evaluation of all images; `compare` refuses attacks whose descriptions differ, as these do."""
    correct = np.concatenate([part.correct for part, _ in parts])
    robust = np.concatenate([part.outcomes("attack") for part, _ in parts])
    whole = Evaluation(correct, {"attack": AttackResult("", robust, ())}, (), Cost(), examples="")
    return whole, sum(seconds for _, seconds in parts)
