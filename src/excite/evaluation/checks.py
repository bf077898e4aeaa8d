"""Which trust checks an evaluation runs: on a few right examples, from its largest attack, and on its own outcomes."""

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from excite.attacks.fast_model import FastModel
from excite.attacks.protocol import Attack
from excite.evaluation import trust
from excite.evaluation.flag import Flag
from excite.evaluation.result import AttackResult


def distrust(
    plain: FastModel,
    attacked: FastModel,
    examples: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    correct: Tensor,
    attacks: Mapping[str, Attack],
    results: Mapping[str, AttackResult],
    generator: torch.Generator,
) -> list[Flag]:
    """Every reason found to distrust `results`; `examples` gives the images and labels with certain numbers.

    More attacking costs time, so it follows one attack only, the first with the largest ε, on examples that withstood
    every attack of this size: a weak attack beside a strong one misleads nobody.
    """
    flags = trust.check_model(plain, *examples(_few(correct))) if correct.any() else []
    sized = {name: attack.eps for name, attack in attacks.items() if attack.eps is not None}
    if sized:
        largest = attacks[max(sized, key=lambda name: sized[name])]
        same_size = [results[name].robust for name, attack in attacks.items() if _size(attack) == _size(largest)]
        robust = torch.from_numpy(np.all(same_size, axis=0))
        if robust.any():
            x, y = examples(_few(robust))
            share = float(robust.double().mean())
            flags += trust.check_attack(attacked, x, y, attack=largest, share=share, generator=generator)
    return flags + square_alone(attacks, results)


def _few(chosen: Tensor) -> Tensor:
    return chosen.nonzero().squeeze(1)[: trust.EXAMPLES]


def square_alone(attacks: Mapping[str, Attack], results: Mapping[str, AttackResult]) -> list[Flag]:
    """Whether Square, where it was asked for, fooled what the gradient attacks of the same size had not."""
    flags = []
    for name, attack in attacks.items():
        robust = results[name].robust
        for (_, member), (before, after) in zip(
            attack.stages[1:], itertools.pairwise(results[name].stages), strict=True
        ):
            if not member.follows_gradients:
                fooled = before.standing - after.standing
                flags.append(trust.black_box(fooled, fooled / len(robust)))
        if not attack.follows_gradients:
            rivals = [
                results[other].robust
                for other, rival in attacks.items()
                if other != name and _size(rival) == _size(attack)
            ]
            if rivals:
                fooled = int((np.all(rivals, axis=0) & ~robust).sum())
                flags.append(trust.black_box(fooled, fooled / len(robust)))
    return [flag for flag in flags if flag is not None]


def _size(attack: Attack) -> tuple[object, object]:
    return attack.eps, attack.norm
