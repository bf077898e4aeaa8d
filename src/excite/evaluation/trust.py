"""Check whether a robust accuracy can be trusted: masked gradients, randomness, attacks that are too weak."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite.attacks.auto_attack import Square
from excite.attacks.fast_model import FastModel, fast_inference
from excite.attacks.geometry import Norm
from excite.attacks.projected_gradient import PGD, margin, pgd
from excite.attacks.protocol import Attack, right_answers
from excite.evaluation.batch import Attacker
from excite.evaluation.result import TRAIN_MODE, AttackResult, Cost, Flag
from excite.randomness import seeded

EXAMPLES = 64
GRADIENTS = 32  # examples whose gradients are looked at,
GRAY = 16  # that are moved toward gray,
REPEATED = 8  # and whose outputs are computed twice
SQUARE_QUERIES = 100
A_POINT = 0.01
A_FEW = 3  # examples; fewer may be chance
WEAKEST = 4  # examples, attacked together; if all withstand, the stronger ones will, too
DIFFERENT = 1e-4  # relative difference of two outputs; rounding errors are far smaller


def distrust(attacker: Attacker, correct: Tensor, results: Mapping[str, AttackResult]) -> tuple[list[Flag], Cost]:
    """Every reason to distrust `results`, and what the checks cost.

    Further attacks cost time, so only one attack is followed up: of those with a known ball, the one with the largest
    ε, preferably one that uses gradients. It is tried on examples that withstood all attacks of this size, because a
    weak attack does no harm beside a strong one.
    """
    plain, examples, generator = FastModel(attacker.model), attacker.examples, seeded(attacker.seed, "trust")
    fast = attacker.fast_model if attacker.fast_model.precision == "float32" else fast_inference(attacker.model)
    before = Cost(time.perf_counter(), fast.forwards, fast.backwards)
    attacks = {name: attack.rungs[-1] for name, attack in attacker.attacks.items()}
    flags = check_model(plain, fast, *examples(_few(correct, generator)[:GRADIENTS])) if correct.any() else []
    sized = {name: attack.eps for name, attack in attacks.items() if attack.eps is not None and attack.norm is not None}
    if sized:
        largest = attacks[max(sized, key=lambda name: (sized[name], _follows_gradients(attacks[name])))]
        same_size = [results[name].robust for name, attack in attacks.items() if _size(attack) == _size(largest)]
        robust = torch.from_numpy(np.all(same_size, axis=0))
        if robust.any():
            x, y = examples(_few(robust, generator))
            share = float(robust.double().mean())
            flags += check_attack(fast, x, y, attack=largest, share=share, generator=generator)
    flags += without_gradients(attacks, results)
    after = Cost(time.perf_counter(), fast.forwards + plain.forwards, fast.backwards + plain.backwards)
    return flags, after - before


def _few(chosen: Tensor, generator: torch.Generator) -> Tensor:
    """A random choice, because the first examples may all be of one class."""
    numbers = chosen.nonzero().squeeze(1)
    return numbers[torch.randperm(len(numbers), generator=generator)[:EXAMPLES]]


def without_gradients(attacks: Mapping[str, Attack], results: Mapping[str, AttackResult]) -> Iterator[Flag]:
    """Flag attacks without gradients, such as Square, that succeed where gradient attacks of the same size failed."""
    for name, attack in attacks.items():
        robust = results[name].robust
        stages = zip(attack.stages[1:], itertools.pairwise(results[name].stages), strict=True)
        for (stage, member), (before, after) in stages:
            if not member.follows_gradients:
                yield from black_box(stage, before.standing - after.standing, len(robust))
        if not _follows_gradients(attack):
            rivals = [
                results[other].robust
                for other, rival in attacks.items()
                if _follows_gradients(rival) and _size(rival) == _size(attack)
            ]
            if rivals:
                yield from black_box(name, int((np.all(rivals, axis=0) & ~robust).sum()), len(robust))


def _follows_gradients(attack: Attack) -> bool:
    return any(stage.follows_gradients for _, stage in attack.stages)


def _size(attack: Attack) -> tuple[object, object]:
    return attack.eps, attack.norm


def check_model(plain: nn.Module, attacked: nn.Module, x: Tensor, y: Tensor) -> list[Flag]:
    """Checks that need no attack, on a few examples that the model, in eval mode, classifies correctly.

    `attacked` is the copy of the `plain` model that attacks use; its outputs and gradients are the same.
    """
    few = x[:REPEATED]
    with torch.no_grad():
        once, again, alone = plain(few), plain(few), plain(few[:1])
    with torch.enable_grad():
        images = x.detach().clone().requires_grad_()
        logits = attacked(images)
        gradient = torch.zeros_like(images)
        if logits.requires_grad:
            loss = cross_entropy(logits, y, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, images, materialize_grads=True)
    flags = [*_repeats(once, again, alone), *_activated(logits.detach()), *_optimizes(plain, few[:2])]
    return [*flags, *_gradients(attacked, x[:GRAY], y[:GRAY], gradient)]


def train_mode(model: nn.Module) -> Iterator[Flag]:
    """Flag layers in train mode; call it before the evaluation switches to eval mode."""
    kinds = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    left = [
        name
        for name, module in model.named_modules()
        if module.training and isinstance(module, kinds) and getattr(module, "track_running_stats", True)
    ]
    if left:
        yield Flag(
            TRAIN_MODE,
            f'the model was in train mode, where {len(left)} of its layers (first "{left[0]}") behave differently; it '
            "was evaluated in eval mode. Call model.eval() wherever else you use it.",
        )


def not_finite(answers: int, total: int) -> Iterator[Flag]:
    """Flag clean examples, `answers` of `total`, for which the model returns infinity or NaN."""
    if answers:
        yield Flag(
            "answers that are not finite",
            f"the model returns infinity or NaN for {answers} of {total} examples, which count as wrong. Look for "
            "overflow, division by zero or diverged weights.",
        )


def _repeats(logits: Tensor, again: Tensor, alone: Tensor) -> Iterator[Flag]:
    """Flag outputs that are random or depend on the batch."""
    if (difference := _difference(again, logits)) > DIFFERENT:
        yield Flag(
            "random outputs",
            f"two calls on the same images differ by {difference:.2g}. Average the gradient over the randomness "
            '(AutoAttack\'s "rand"), and count an example as robust only if it is right every time.',
        )
    elif len(logits) > 1 and (difference := _difference(logits[:1], alone)) > DIFFERENT:
        yield Flag(
            "batch dependence",
            f"an image's logits change by {difference:.2g} with the other images of its batch, even in eval mode. Use "
            "fixed statistics instead of batch statistics.",
        )


def _activated(logits: Tensor) -> Iterator[Flag]:
    """Flag outputs that have passed through an activation."""
    positive = bool((logits >= 0).all())
    if positive and bool(((logits.sum(1) - 1).abs() < 1e-4).all()):
        yield Flag(
            "probabilities instead of logits",
            "every row of outputs is non-negative and sums to one. The softmax in the loss then flattens the gradient; "
            "return logits.",
        )
    rectified = positive and float((logits == 0).float().mean()) > 0.05
    saturated = bool((logits.abs() <= 1).all()) and float((logits.abs() > 0.99).float().mean()) > 0.05
    if rectified or saturated:
        yield Flag(
            "activated logits",
            f"{'no logit is negative, many are 0' if rectified else 'all logits are in [-1, 1], many at its edges'}: "
            "a ReLU or tanh after the last layer passes almost no gradient there. Attack the values before it.",
        )


def _optimizes(model: nn.Module, x: Tensor) -> Iterator[Flag]:
    """Flag a forward pass that calls autograd."""
    try:
        with torch.inference_mode():  # in which autograd refuses to work
            model(x)
    except RuntimeError:
        yield Flag(
            "optimises at inference",
            "the forward pass differentiates something itself, so the attack follows the gradient of a moving target. "
            "Attack through the inner optimizer, or the model without it.",
        )


def _gradients(model: nn.Module, x: Tensor, y: Tensor, gradient: Tensor) -> Iterator[Flag]:
    """Flag gradients that are zero, or along which even plain gray images are not reached."""
    share = float((gradient.flatten(1).abs().amax(1) == 0).float().mean())
    if share > A_POINT:
        yield Flag(
            "vanishing gradients",
            f"{share:.0%} of the examples have an input gradient of exactly zero: attacks that follow the "
            'cross-entropy cannot move them. Try loss="margin" and Square, and look for what stops the gradient.',
        )
    gray = PGD(eps=0.5, step=0.05, steps=20)  # within 0.5, every image can become the same gray one
    left = 1 - _fooled(model, x, y, gray, None) / len(x)
    if left > 0.1:
        yield Flag(
            "accuracy does not fall",
            f"at ε = 0.5, which can turn every image into plain gray, {left:.0%} of the examples still withstand "
            "PGD-20: the gradient misleads the attack. Try other losses and Square.",
        )


def check_attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack,
    share: float,
    generator: torch.Generator,
    together: int = WEAKEST,
    queries: int = SQUARE_QUERIES,
) -> list[Flag]:
    """Try stronger attacks on examples that withstood `attack`; `share` is the share of all examples that did.

    They are attacked in groups of `together`, the weakest first, until a whole group withstands or enough have fallen.
    """
    if not attack.eps or attack.norm is None or share <= A_POINT:
        return []
    order, total = _weakest_first(model, x, y, eps=attack.eps, norm=attack.norm), len(x) / share

    def n_fooled(more: Attack) -> int:
        fooled = 0
        for group in torch.split(order, together):
            more_fooled = _fooled(model, x[group], y[group], more, generator)
            fooled += more_fooled
            if not more_fooled or _enough(fooled, total):
                break
        return fooled

    flags: list[Flag] = []
    square = Square(attack.eps, attack.norm, queries=queries)
    if square.takes(x) and all(stage.follows_gradients for _, stage in attack.stages):
        flags += black_box("Square", n_fooled(square), total)
    if isinstance(attack, PGD):
        stronger = replace(attack, steps=2 * attack.steps, random_start=True, loss="margin", keep="best")
        if _enough(fooled := n_fooled(stronger), total):
            message = (
                f"twice the steps, a random start and the margin loss lower the accuracy by about "
                f"{100 * fooled / total:.1f} points or more: the attack was too weak. Raise steps and restarts, and "
                "try that loss, until nothing changes."
            )
            flags.append(Flag("a stronger attack helps", message))
    return flags


def _weakest_first(model: nn.Module, x: Tensor, y: Tensor, *, eps: float, norm: Norm) -> Tensor:
    """Order examples by their margin after one step of length ε."""
    moved = pgd(model, x, y, eps=eps, step=eps, steps=1, norm=norm, loss="margin", keep="last")
    with torch.no_grad():
        return margin(model(moved), y).argsort(descending=True)


def _enough(fooled: int, total: float) -> bool:
    return fooled >= A_FEW and fooled / total > A_POINT


def black_box(attack: str, fooled: int, total: float) -> Iterator[Flag]:
    """Flag that `fooled` of `total` examples fell to it after all gradient attacks of its size failed."""
    if _enough(fooled, total):
        yield Flag(
            "black box beats white box",
            f"{attack}, which uses no gradient, lowers the accuracy by about {100 * fooled / total:.1f} points or more "
            "after the gradient attacks: they are too short, or the gradient is masked. Report the accuracy under "
            f"{attack} too, and raise steps and restarts; if that changes nothing, find what masks the gradient.",
        )


def _fooled(model: nn.Module, x: Tensor, y: Tensor, attack: Attack, generator: torch.Generator | None) -> int:
    x_adv = attack(model, x, y, generator)
    with torch.no_grad():
        return int((~right_answers(model(x_adv), y)).sum())


def _difference(value: Tensor, truth: Tensor) -> float:
    return float((value - truth).norm() / truth.norm().clamp_min(1e-12))
