"""Which flags do the trust checks lose or gain if they attack the weakest examples first, with few queries?"""

import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from excite import attacks, data
from excite.attacks import Attack, fast_inference
from excite.evaluation import evaluate
from excite.evaluation.trust import EXAMPLES, SQUARE_QUERIES, WEAKEST, check_attack
from excite.randomness import seeded
from tests.evaluation.test_trust import Misleading, Quantised, RectifiedLogits, SaturatedLogits, Scaled, Softmax, train

SEEDS = (20, 21)
DEFENCES: tuple[Callable[[nn.Module], nn.Module], ...] = (
    lambda honest: honest, Misleading, Scaled, Quantised, RectifiedLogits, SaturatedLogits, Softmax
)  # fmt: skip
ATTACKS = [
    attacks.create("pgd", eps=eps, step=eps / 5, steps=steps, norm=norm)
    for norm, eps, steps in (
        ("linf", 0.1, 2), ("linf", 0.1, 5), ("linf", 0.05, 20), ("linf", 0.1, 20), ("linf", 0.15, 20), ("l2", 1.0, 5),
        ("l2", 1.0, 20),
    )
]  # fmt: skip


def survivors(only: str) -> Iterator[tuple[str, nn.Module, Attack, float, Tensor, Tensor]]:
    """Small networks, plain or with a fake defence, and the images that are robust to an attack."""
    test = data.load("mnist-sample").test
    x, y = test.floats()[:250], test.labels[:250]
    for seed in SEEDS:
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10)]
        honest = train(nn.Sequential(*layers), rate=0.05, epochs=1 + seed % 3)
        for defence, attack in itertools.product(DEFENCES, ATTACKS):
            model = defence(honest)
            title = f"seed {seed}, {type(model).__name__}, {attack}"
            if only in title:
                robust = torch.from_numpy(evaluate(model, x, y, {"attack": attack}, checks=False).outcomes("attack"))
                yield title, model, attack, float(robust.double().mean()), x[robust][:EXAMPLES], y[robust][:EXAMPLES]


def main(only: str) -> None:
    """Compare flags from attacking all examples at once with flags from the weakest first; random starts differ."""
    seconds, flags = {EXAMPLES: 0.0, WEAKEST: 0.0}, {EXAMPLES: 0, WEAKEST: 0}
    cases, lost, gained = 0, 0, 0
    for title, model, attack, share, x, y in survivors(only):
        if len(x) == 0:
            continue
        cases, found = cases + 1, dict[int, set[str]]()
        for together in seconds:
            began, fast = time.process_time(), fast_inference(model)
            generator = seeded(0, "trust")
            queries = 200 if together == EXAMPLES else SQUARE_QUERIES
            checked = check_attack(
                fast, x, y, attack=attack, share=share, generator=generator, together=together, queries=queries
            )
            seconds[together] += time.process_time() - began
            found[together] = {flag.name for flag in checked}
            flags[together] += len(found[together])
        missing, new = found[EXAMPLES] - found[WEAKEST], found[WEAKEST] - found[EXAMPLES]
        lost, gained = lost + len(missing), gained + len(new)
        if missing or new:
            print(f"  {title}: lost {sorted(missing) or 'none'}, gained {sorted(new) or 'none'}", flush=True)
    print(
        f"{cases} cases: {flags[EXAMPLES]} flags from all examples at once, {flags[WEAKEST]} with the {WEAKEST} weakest"
    )
    print(f"first: {lost} lost, {gained} gained; {seconds[EXAMPLES]:.0f} and {seconds[WEAKEST]:.0f} CPU seconds")
