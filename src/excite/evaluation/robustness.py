"""Measure a model's clean accuracy and its accuracy under attack: `evaluate`, a loop over attacks and batches."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excite.attacks.fast_model import eval_mode
from excite.attacks.given import Attacks, Radius, as_attacks, fingerprint
from excite.attacks.protocol import Attack, Ladder, check_examples, check_inputs, check_labels, right_answers
from excite.console import progress_bar
from excite.errors import InputError
from excite.evaluation import trust
from excite.evaluation.batch import Attacker, AttackState, Journal
from excite.evaluation.result import AttackResult, Cost, Curve, Evaluation, Flag
from excite.execution import EngineName, Executor, Shards, executor
from excite.precision import Precision, check_precision, exact_products
from excite.quantities import MODULE, OnProgress, check_kind, check_whole
from excite.randomness import device_of

Array = Tensor | NDArray[Any]
Batches = Iterable[tuple[Array, Array]]  # a DataLoader


def evaluate(
    model: nn.Module,
    x: Array | Batches,
    y: Array | None = None,
    attacks: Attacks = (),
    *,
    eps: Radius | None = None,
    batch_size: int = 128,
    seed: int = 0,
    precision: Precision = "float32",
    checks: bool = True,
    journal: Path | str | None = None,
    on_progress: OnProgress | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
) -> Evaluation:
    """Measure clean accuracy, accuracy under each attack and worst-case accuracy, with every example's outcome.

    An attack is a function (model, x, y, generator) -> x_adv, for instance `attacks.create("pgd", …)` or
    `partial(attacks.pgd, eps=…, step=…)`, or a name such as "pgd" or "fgsm" with `eps="8/255"`. Only examples that the
    model classifies correctly are attacked. Each batch has its own generator, seeded from (seed, attack, batch), so
    results depend neither on interruptions nor on the number of workers. The model is left as it was.

    Inputs that are not images, such as rows of features in [0, 1], are evaluated the same way, without the checks that
    need images. For text, attack the embeddings.

    Args:
        model: returns logits for images in [0, 1]; it is evaluated in eval mode.
        x: images in [0, 1], as a tensor or an array; or a DataLoader, which replaces `x` and `y`.
        y: class numbers.
        attacks: one attack, a list, or a mapping from the names that the result shows.
        eps: radius for attacks that have none. Several radii give a curve of accuracy against ε for every attack.
        batch_size: examples that are attacked together. With several workers, leave each of them several batches.
        seed: of every random choice.
        precision: of the search. "bf16" runs the layers of the attacked copy in bfloat16, "tf32" rounds their products.
            The model itself decides, in float32, which images are misclassified.
        checks: run the trust checks, whose findings are the result's `flags`.
        journal: a file, written after every batch, from which an interrupted evaluation resumes.
        on_progress: called with (done, total) examples of the running attack; by default a terminal shows a bar.
        workers: processes that attack batches, each with one thread, or with one GPU if the model is on a GPU.
        engine: "ray" attacks the batches on a Ray cluster.
        address: of the Ray cluster; by default Ray is started on this machine.

    Returns:
        Accuracies with 95% intervals, per attack and in the worst case, and reasons to distrust them.

    >>> blind = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> _ = nn.init.zeros_(blind[1].weight), nn.init.constant_(blind[1].bias[:1], 1.0)  # always answers class 0
    >>> evaluate(blind, torch.rand(4, 1, 2, 2), torch.tensor([0, 0, 1, 0]), {}).clean.value
    0.75
    """
    check_whole("seed", seed, least=0)
    check_whole("batch_size", batch_size, least=1)
    check_kind("model", model, "parameters", MODULE)
    check_precision(precision, device_of(model))
    by_name = as_attacks(attacks, eps)
    x, y = as_examples(model, x, y)
    (check_inputs if by_name else check_examples)(x, y)
    if len(x) == 0:
        raise InputError("There are no examples to evaluate; pass at least 1.")
    path = None if journal is None else Path(journal)
    in_train_mode = list(trust.train_mode(model))
    if not by_name or (workers in (None, 1) and (engine, address) == ("local", None)):
        starting: AbstractContextManager[Executor | None] = nullcontext()
    else:
        uses_gpus, n_batches = device_of(model, x).type == "cuda", math.ceil(len(x) / batch_size)
        starting = executor(Shards(workers, engine, address), use_gpus=uses_gpus, n_tasks=n_batches)
    with eval_mode(model), _gradients_kept(model):
        with starting as pool, progress_bar("Evaluating", on_progress) as report:
            started = time.perf_counter()
            correct, n_not_finite, n_classes = _clean(model, x, y, batch_size)
            cost = Cost(time.perf_counter() - started, forwards=len(x))
            examples, chance = fingerprint([x, y]), float(y.bincount().max()) / len(y)
            if not by_name:
                return Evaluation(correct.numpy(), {}, (), cost, examples, chance)
            weights = "" if path is None else fingerprint([*model.parameters(), *model.buffers(), correct])
            key = f"{batch_size, seed, precision, list(by_name.items())} on {examples} with {weights}"
            progress = Journal.open(path, key, by_name, correct.tolist(), batch_size)
            attacker = Attacker(model, x, y, by_name, seed=seed, precision=precision, pool=pool)
            for name, state in progress.attacks.items():
                while not state.finished:
                    for batch, result in attacker.attack(name, state):
                        state.update(batch, *result)
                        progress.save(path)
                        report(state.n_done, state.n_entered)
                    state.next_stage(batch_size)
        results = {name: _result(by_name[name], state, precision) for name, state in progress.attacks.items()}
        flags = list(_doubts(by_name, n_classes, precision))
        if checks:
            found, checks_cost = trust.distrust(attacker, correct, results)
            flags = [*in_train_mode, *trust.not_finite(n_not_finite, len(x)), *found, *flags]
            cost += checks_cost
    return Evaluation(
        correct=correct.numpy(),
        attacks=results,
        flags=tuple(flags),
        cost=sum((result.cost for result in results.values()), cost),
        examples=examples,
        chance=chance,
    )


def _result(attack: Attack, state: AttackState, precision: Precision) -> AttackResult:
    curve = Curve(attack.radii, np.asarray(state.fell_at)) if isinstance(attack, Ladder) else None
    rounded = "" if precision == "float32" else f", searched in {precision}"
    return AttackResult(f"{attack}{rounded}", state.robust, tuple(state.stages), curve)


def _doubts(attacks: Mapping[str, Attack], classes: int, precision: Precision) -> Iterator[Flag]:
    """Flag attacks that need more classes, or that may be weaker in bfloat16 (docs/lab/attack-speed.md)."""
    for name, attack in attacks.items():
        for stage, member in attack.stages:
            yield from (Flag(f"{name}/{stage}" if stage else name, doubt) for doubt in member.doubts(classes))
    if precision == "bf16":
        yield Flag(
            "preview",
            f"{', '.join(attacks)} searched in bfloat16, which can miss images that float32 finds. Evaluate with "
            'precision="float32" (in an experiment attack_precision) before you report the accuracy.',
        )


def _clean(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> tuple[Tensor, int, int]:
    """Which clean images are classified correctly, for how many the output is not finite, and the number of classes."""
    device = device_of(model, x)
    right, not_finite = [], 0
    for images, labels in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
        with torch.no_grad(), exact_products(device):
            try:
                logits = model(images.to(device))
            except RuntimeError as error:
                raise InputError(
                    f"The model does not take images of shape {tuple(x.shape[1:])}: {error}. Pass images of the shape "
                    "it was trained on."
                ) from error
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(images):
            returned = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise InputError(
                f"For {len(images)} images the model returns {returned}; it must return one row of logits per image. "
                "Wrap it in a module whose forward returns logits alone."
            )
        check_labels(labels, logits)
        right.append(right_answers(logits, labels.to(device)).cpu())
        not_finite += int((~logits.isfinite().all(1)).sum())
    return torch.cat(right), not_finite, logits.shape[1]


@contextlib.contextmanager
def _gradients_kept(model: nn.Module) -> Iterator[None]:
    """Restore the parameters' gradients afterwards, because some attacks call backward()."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def as_examples(model: nn.Module, x: Array | Batches, y: Array | None) -> tuple[Tensor, Tensor]:
    """Images in the model's floating-point type, and integer labels; a DataLoader is read to its end."""
    try:
        if y is None:
            batches: Any = x
            images, labels = map(torch.cat, zip(*(map(_tensor, batch) for batch in batches), strict=True))
        else:
            images, labels = _tensor(x), _tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "Images and labels must be numbers, in tensors or arrays. Without y, x must yield batches (images, "
            f"labels), as a DataLoader does: evaluate(model, loader, attacks=…) ({error})."
        ) from error
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if images.is_floating_point() and len(dtypes) == 1:
        images = images.to(dtypes.pop())
    if not labels.is_floating_point() and labels.dtype != torch.bool:
        labels = labels.long()
    return images, labels


def _tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
