"""Judge a model under attack: every verdict comes from the model itself, in eval mode, on the attacked image."""

import contextlib
import dataclasses
import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from excite.attacks.ball import distance
from excite.attacks.fast_model import FastModel, eval_mode, fast_inference
from excite.attacks.function import as_attack
from excite.attacks.protocol import Attack, AttackFunction, AttackWarning, check_inputs
from excite.errors import InputError
from excite.evaluation import trust
from excite.evaluation.checks import distrust
from excite.evaluation.journal import Journal
from excite.evaluation.result import AttackResult, Cost, Evaluation

ROUNDING = 1e-6

OnProgress = Callable[[str, int, int], None]


def evaluate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attacks: Mapping[str, Attack | AttackFunction],
    *,
    batch_size: int = 128,
    seed: int = 0,
    fast: bool = True,
    checks: bool = True,
    journal: Path | None = None,
    progress: OnProgress | None = None,
) -> Evaluation:
    """Clean accuracy, accuracy under each attack and in the worst case, with every example's outcome.

    An attack is a function (model, x, y, generator) -> x_adv, for instance `attacks.create("pgd", …)`. It meets the
    examples the model gets right, batch by batch; its generator is seeded from (seed, attack, batch), so the verdicts
    do not depend on where an evaluation was interrupted. `journal` names a file to resume from, written after every
    batch. `checks` adds the trust checks, whose findings are the result's `flags`. `progress` is told (attack, examples
    done, examples to do). The model comes back as it was.
    """
    known = {name: as_attack(attack) for name, attack in attacks.items()}
    check_inputs(x, y)
    if len(x) == 0 or batch_size < 1:
        raise InputError(f"{len(x)} examples in batches of {batch_size} give no verdict; pass at least 1 of each.")
    left_in_train_mode = trust.train_mode(model)
    with eval_mode(model), _gradients_kept(model):
        attacked = fast_inference(model) if fast else FastModel(model, None)
        began = time.perf_counter()
        correct = _clean(model, x, y, batch_size)
        cost = Cost(time.perf_counter() - began, forwards=len(x))
        examples = _hash([x, y])
        order = [batch_size, seed, *((name, repr(attack)) for name, attack in known.items())]
        weights = "" if journal is None else _hash([*model.parameters(), *model.buffers()])
        diary = Journal(journal, key=f"{order} on {examples} with {weights}", correct=correct)
        session = _Session(model, attacked, x, y, batch_size, seed, diary, progress)
        results = {name: session.run(name, attack) for name, attack in known.items()}
        if checks and known and not diary.checked:
            diary.add_flags([left_in_train_mode, *session.distrust(correct, known, results)])
            diary.checked = True
            diary.write()
    return Evaluation(
        correct=correct,
        attacks=results,
        flags=tuple(diary.flags),
        cost=sum((result.cost for result in results.values()), cost + diary.cost_of_checks),
        examples=examples,
    )


@dataclasses.dataclass
class _Session:
    model: nn.Module  # gives the verdicts
    attacked: FastModel  # is what attacks see
    x: Tensor
    y: Tensor
    batch_size: int
    seed: int
    journal: Journal
    progress: OnProgress | None

    def run(self, name: str, attack: Attack) -> AttackResult:
        """Bring one attack from where the journal left it to its end."""
        state = self.journal.progress(name)
        for stage_name, stage in attack.stages[len(state.stages) :]:
            label = f"{name}/{stage_name}" if stage_name else name
            standing = state.stage_began_with.nonzero().squeeze(1)
            batches = torch.split(standing, self.batch_size) if len(standing) else ()
            for batch in batches[state.batches_done :]:
                state.standing[batch], cost = self._verdicts(label, stage, batch, state.batches_done)
                state.batches_done += 1
                state.stage_cost += cost
                self.journal.write()
                if self.progress is not None:
                    self.progress(label, min(state.batches_done * self.batch_size, len(standing)), len(standing))
            state.finish_stage(stage_name or name)
            self.journal.write()
        return AttackResult(str(attack), state.standing, tuple(state.stages))

    def distrust(
        self, correct: Tensor, attacks: Mapping[str, Attack], results: Mapping[str, AttackResult]
    ) -> list[trust.Flag]:
        plain = FastModel(self.model, None)
        began = self._spent()
        flags = distrust(
            plain,
            self.attacked,
            self._examples,
            correct=correct,
            attacks=attacks,
            results=results,
            generator=seeded(self.seed, "trust"),
        )
        self.journal.cost_of_checks = self._spent() - began + Cost(0, plain.forwards, plain.backwards)
        return flags

    def _verdicts(self, label: str, attack: Attack, batch: Tensor, number: int) -> tuple[Tensor, Cost]:
        began = self._spent()
        x, y = self._examples(batch)
        with _warnings_kept(label, self.journal):
            x_adv = attack(self.attacked, x, y, seeded(self.seed, label, number))
        _check_inside(x_adv, x, attack, label)
        with torch.no_grad():
            right = (self.model(x_adv).argmax(1) == y).cpu()
        return right, self._spent() - began + Cost(forwards=len(batch))

    def _examples(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        device = _device(self.model, self.x)
        return self.x[numbers.to(self.x.device)].to(device), self.y[numbers.to(self.y.device)].to(device)

    def _spent(self) -> Cost:
        return Cost(time.perf_counter(), self.attacked.forwards, self.attacked.backwards)


def seeded(*words: object) -> torch.Generator:
    """A generator whose draws depend on the words alone, in every process."""
    digest = hashlib.sha256(repr(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _clean(model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> Tensor:
    """Which clean images are right; on the way, that model, images and labels belong together."""
    device = _device(model, x)
    right = []
    for images, labels in zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True):
        with torch.no_grad():
            try:
                logits = model(images.to(device))
            except RuntimeError as error:
                raise InputError(
                    f"The model does not take images of shape {tuple(x.shape[1:])}: {error}. Pass images of the shape "
                    "it was trained on."
                ) from error
        if logits.dim() != 2 or len(logits) != len(images):
            raise InputError(
                f"The model answers {len(images)} images with shape {tuple(logits.shape)}; "
                "it must give one row of logits per image."
            )
        classes = logits.shape[1]
        if labels.min() < 0 or labels.max() >= classes:
            raise InputError(
                f"Labels must lie in 0 to {classes - 1} for a model with {classes} logits; "
                f"these range from {int(y.min())} to {int(y.max())}."
            )
        right.append((logits.argmax(1) == labels.to(device)).cpu())
    return torch.cat(right)


def _check_inside(x_adv: Tensor, x: Tensor, attack: Attack, label: str) -> None:
    """An attack that leaves the box, or the ball it announces, is broken: no verdict of it counts."""
    if x_adv.shape != x.shape or not bool(((x_adv >= 0) & (x_adv <= 1)).all()):
        raise InputError(f"The attack {label} returned images outside [0, 1] or of another shape; clamp them.")
    if attack.eps is None or attack.norm is None:
        return
    furthest = float(distance(x_adv, x, norm=attack.norm).max())
    if furthest > attack.eps + ROUNDING * max(1.0, attack.eps):
        raise InputError(f"The attack {label} went {furthest:g} away from the image, further than eps={attack.eps:g}.")


def _device(model: nn.Module, x: Tensor) -> torch.device:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), x.device)


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


@contextlib.contextmanager
def _warnings_kept(label: str, journal: Journal) -> Iterator[None]:
    """What an attack warns of becomes a flag of the evaluation; other warnings pass through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if issubclass(warning.category, AttackWarning):
            journal.add_flags([trust.Flag(label, str(warning.message))])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
