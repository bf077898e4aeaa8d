"""Judge a model under attack: every verdict is its own, in eval mode, on images and attacks in any customary form."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excite.attacks.fast_model import FastModel, eval_mode
from excite.attacks.function import fingerprint
from excite.attacks.given import Attacks, Radius, as_attacks
from excite.attacks.ladder import Ladder
from excite.attacks.protocol import Attack, check_examples, check_inputs, check_labels, right_answers
from excite.errors import InputError
from excite.evaluation import trust
from excite.evaluation.accuracy import Curve
from excite.evaluation.batch import Judge, device_of
from excite.evaluation.journal import LAST, Agenda, Journal, Progress
from excite.evaluation.result import AttackResult, Cost, Evaluation, Flag
from excite.evaluation.shards import EngineName, Shards, engines
from excite.quantities import MODULE, OnProgress, check_kind, check_whole
from excite.randomness import seeded
from excite.registry import named_options

Array = Tensor | NDArray[Any]
Batches = Iterable[tuple[Array, Array]]  # a DataLoader


@named_options
def evaluate(
    model: nn.Module,
    x: Array | Batches,
    y: Array | None = None,
    attacks: Attacks = (),
    *,
    eps: Radius | None = None,
    batch_size: int = 128,
    seed: int = 0,
    fast: bool = True,
    checks: bool = True,
    journal: Path | str | None = None,
    on_progress: OnProgress | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
) -> Evaluation:
    """Clean accuracy, accuracy under each attack and in the worst case, with every example's outcome.

    `x` and `y` are tensors or arrays, or `x` alone a DataLoader. An attack is a function (model, x, y, generator) ->
    x_adv, for instance `attacks.create("pgd", …)` or `partial(attacks.pgd, eps=…, step=…)`, or a name such as "pgd" or
    "fgsm" with `eps="8/255"`; give one, a list, or a mapping by name. It meets the examples the model gets right, batch
    by batch; its generator is seeded from (seed, attack, batch), so the verdicts do not depend on where an evaluation
    was interrupted, nor on how many processes share it. Several `eps` run every attack at each of them, from the
    largest down, for a curve of accuracy against ε. `journal` names a file to resume from, written after every batch.
    `checks` adds the trust checks, whose findings are the result's `flags`. `on_progress` is told (done, total) of
    the examples of the attack that is running. The model comes back as it was.

    Rows of numbers in [0, 1] are judged as images are, without the checks that need images; text has no ball around it:
    attack its embeddings.

    `workers` processes, this one among them, judge the batches, each with one thread, or with one GPU if the model lies
    on one; the engine "ray" has them judged by the cluster at `address`, or by a Ray of its own on this machine. Take a
    batch size that leaves each of them several batches.

    Args:
        model: logits from images in [0, 1]; it is evaluated in eval mode.
        x: images in [0, 1].
        y: class numbers.
        attacks: by the names that the result shows.

    Returns:
        Accuracies with 95% intervals, per attack and in the worst case, and reasons to distrust them.

    >>> blind = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> _ = nn.init.zeros_(blind[1].weight), nn.init.constant_(blind[1].bias[:1], 1.0)  # class 0, whatever it sees
    >>> evaluate(blind, torch.rand(4, 1, 2, 2), torch.tensor([0, 0, 1, 0]), {}).clean.value
    0.75
    """
    check_whole("seed", seed, least=0)
    check_whole("batch_size", batch_size, least=1)
    check_kind("model", model, "parameters", MODULE)
    known = as_attacks(attacks, eps)
    x, y = as_examples(model, x, y)
    journal = None if journal is None else Path(journal)
    (check_inputs if known else check_examples)(x, y)
    if len(x) == 0:
        raise InputError("0 examples give no verdict; pass at least 1.")
    shards = Shards(workers, engine, address)
    shards.check(len(x))
    left_in_train_mode = trust.train_mode(model)
    batches = len(known) * math.ceil(len(x) / batch_size)
    with eval_mode(model), _gradients_kept(model):
        with engines(shards, device_of(model, x), batches=batches) as hire:
            began = time.perf_counter()
            correct, not_finite = _clean(model, x, y, batch_size)
            cost = Cost(time.perf_counter() - began, forwards=len(x))
            examples, chance = fingerprint([x, y]), float(y.bincount().max()) / len(y)
            if not known:
                return Evaluation(correct.numpy(), {}, (), cost, examples, chance=chance)
            order = [batch_size, seed, *((name, repr(attack)) for name, attack in known.items())]
            weights = "" if journal is None else fingerprint([*model.parameters(), *model.buffers(), correct])
            diary = Journal(journal, key=f"{order} on {examples} with {weights}", correct=correct, attacks=known)
            judge = Judge(model, x, y, known, seed=seed, fast=fast)
            hire(judge).work_off(Agenda(diary, batch_size, on_progress))
        results = {name: _result(attack, diary.progress[name]) for name, attack in known.items()}
        if checks and not diary.checked:
            flags, diary.cost_of_checks = _distrust(judge, correct, results)
            diary.add_flags(LAST, [left_in_train_mode, trust.not_finite(not_finite, len(x)), *flags])
            diary.checked = True
            diary.write()
    return Evaluation(
        correct=correct.numpy(),
        attacks=results,
        flags=tuple(diary.flags),
        cost=sum((result.cost for result in results.values()), cost + diary.cost_of_checks),
        examples=examples,
        chance=chance,
    )


def _result(attack: Attack, stages: Sequence[Progress]) -> AttackResult:
    fell_at = stages[-1].fell_at
    curve = Curve(attack.radii, fell_at.numpy()) if isinstance(attack, Ladder) else None
    robust = (fell_at > len(attack.rungs)).numpy()
    return AttackResult(str(attack), robust, tuple(stage.result for stage in stages), curve)


def _distrust(judge: Judge, correct: Tensor, results: Mapping[str, AttackResult]) -> tuple[list[Flag], Cost]:
    plain, began = FastModel(judge.model), judge.spent()
    flags = trust.distrust(
        plain,
        judge.attacked,
        judge.examples,
        correct=correct,
        attacks={name: attack.rungs[-1] for name, attack in judge.attacks.items()},
        results=results,
        generator=seeded(judge.seed, "trust"),
    )
    return flags, judge.spent() - began + Cost(0, plain.forwards, plain.backwards)


def _clean(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> tuple[Tensor, int]:
    """Which clean images are right, and how many answers are not finite; on the way, that all three fit together."""
    device = device_of(model, x)
    right, not_finite = [], 0
    for images, labels in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
        with torch.no_grad():
            try:
                logits = model(images.to(device))
            except RuntimeError as error:
                raise InputError(
                    f"The model does not take images of shape {tuple(x.shape[1:])}: {error}. Pass images of the shape "
                    "it was trained on."
                ) from error
        if not isinstance(logits, Tensor):
            raise InputError(
                f"The model answers with a {type(logits).__name__}; it must return the logits alone. Wrap it in a "
                "module whose forward returns them."
            )
        if logits.dim() != 2 or len(logits) != len(images):
            raise InputError(
                f"The model answers {len(images)} images with shape {tuple(logits.shape)}; "
                "it must give one row of logits per image."
            )
        check_labels(labels, logits)
        right.append(right_answers(logits, labels.to(device)).cpu())
        not_finite += int((~logits.isfinite().all(1)).sum())
    return torch.cat(right), not_finite


@contextlib.contextmanager
def _gradients_kept(model: nn.Module) -> Iterator[None]:
    """Some attacks call backward(); what they leave in the parameters' gradients is taken away again."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def as_examples(model: nn.Module, x: Array | Batches, y: Array | None) -> tuple[Tensor, Tensor]:
    """Images in the model's own floating-point type, and whole labels; a loader is read to its end."""
    if y is None:
        x, y = _loaded(x)
    images, labels = _tensor(x, "Images"), _tensor(y, "Labels")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InputError(
            f"Inputs of type {images.dtype} have no ball around them to search: for text, attack the embeddings "
            "(a model that takes them, scaled to [0, 1]); images are floating-point numbers in [0, 1]."
        )
    if images.is_floating_point():
        dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        images = images.to(dtypes.pop()) if len(dtypes) == 1 else images
    if not labels.is_floating_point() and labels.dtype != torch.bool:
        labels = labels.long()
    return images, labels


def _loaded(batches: Any) -> tuple[Tensor, Tensor]:
    try:
        pairs = [(_tensor(images, "Images"), _tensor(labels, "Labels")) for images, labels in batches]
        return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Without labels, the second argument must give batches (images, labels), as a DataLoader does ({error})."
        ) from error


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ndarray | list | tuple):
        try:
            return torch.as_tensor(np.asarray(values))
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} must be numbers: {error}.") from error
    raise InputError(
        f"{what} must be a tensor or an array, not {type(values).__name__}. A loader takes the place of images and "
        "labels: evaluate(model, loader, attacks=…)."
    )
