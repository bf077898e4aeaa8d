"""The recorder in other people's loops: the slopes are right, or it warns and says what to do.

Each row of the table in docs/recorder.md is one of ROWS.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils import parameters_to_vector
from torch.utils.checkpoint import checkpoint

from excite.errors import InputError
from excite.trace import Recorder
from tests.tf32 import tf32

STEPS = 6
TABLE = Path(__file__).parents[2] / "docs" / "recorder.md"
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def vectors(step: int) -> tuple[Any, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 5, generator=generator), torch.randint(0, 3, (16,), generator=generator)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def frozen() -> nn.Module:
    model = classifier()
    for parameter in next(model.children()).parameters():
        parameter.requires_grad_(False)
    return model


class TakesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier()

    def forward(self, *, features: Tensor, scale: float) -> Tensor:
        logits: Tensor = self.inner(features * scale)
        return logits


class Text(nn.Module):
    """Token numbers in, classes out; the embedding's gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 6, sparse=True)
        self.out = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.words(tokens))
        return logits


class Tabular(nn.Module):
    """A category and some numbers in, one logit out."""

    def __init__(self) -> None:
        super().__init__()
        self.category = nn.Embedding(4, 3)
        self.out = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, numbers: Tensor, category: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.cat([numbers, self.category(category)], dim=1))
        return logits


def plain_loss(model: nn.Module, x: Any, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def checkpointed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model[2](checkpoint(model[:2], x, use_reentrant=False)), y)


def in_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [{"params": parameters[:1], "lr": 0.01}, {"params": parameters[1:]}]
    return torch.optim.SGD(groups, lr=0.1)


def of_those_that_train(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)


def of_the_last_layer(model: nn.Module) -> torch.optim.Optimizer:
    """Nobody clears what gathers in `.grad` of the first one."""
    return torch.optim.SGD(list(model.parameters())[-2:], lr=0.1)


def compiled(model: nn.Module) -> nn.Module:
    wrapped: Any = torch.compile(model, backend="eager")
    return wrapped  # type: ignore[no-any-return]


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@dataclass(frozen=True)
class Loop:
    """One way to train; `warning` is the kind of warning that the recorder gives, None if it gives no warning."""

    warning: str | None = None
    model: Callable[[], nn.Module] = classifier
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    optimizer: Optimizers = sgd
    batch: Callable[[int], tuple[Any, Tensor]] = vectors
    loss: Callable[[nn.Module, Any, Tensor], Tensor] = plain_loss
    clip: float | None = None
    accumulate: int = 1
    autocast: bool = False
    scaler: bool = False
    early: bool = False
    freeze_at: int | None = None  # the step before which the first layer is frozen
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    tolerance: float = 1e-3
    options: dict[str, Any] = field(default_factory=dict)


ROWS: dict[str, Loop] = {
    "plain SGD, momentum, weight decay": Loop(),
    "gradient accumulation": Loop(accumulate=2),
    "gradient clipping": Loop(clip=0.05),
    "several parameter groups": Loop(optimizer=in_groups),
    "AdamW": Loop("optimizer", optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)),
    "Adadelta": Loop("optimizer", optimizer=lambda model: torch.optim.Adadelta(model.parameters())),
    "frozen layers": Loop(model=frozen, optimizer=of_those_that_train),
    "a layer that is frozen on the way": Loop(freeze_at=3),
    "an optimizer of some layers": Loop(optimizer=of_the_last_layer),
    "torch.compile": Loop(wrap=compiled),
    "DataParallel": Loop(wrap=nn.DataParallel),
    "DistributedDataParallel": Loop(wrap=nn.parallel.DistributedDataParallel, around=one_process),
    "bfloat16 autocast": Loop(autocast=True, tolerance=0.05, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1)),
    "bfloat16 autocast with a scaler": Loop(
        autocast=True, scaler=True, tolerance=0.05, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1)
    ),
    "models that take dicts": Loop(
        model=TakesDict,
        batch=lambda step: ({"features": vectors(step)[0], "scale": 1.0}, vectors(step)[1]),
        loss=lambda model, x, y: cross_entropy(model(**x), y),
    ),
    "checkpointed layers, use_reentrant=False": Loop(loss=checkpointed),
    "a loss that is not classification": Loop(loss=lambda model, x, y: mse_loss(model(x)[:, 0], y.float())),
    "text, with sparse gradients": Loop(
        model=Text,
        batch=lambda step: (torch.randint(0, 20, (16, 7)), vectors(step)[1]),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    ),
    "tabular": Loop(
        model=Tabular,
        batch=lambda step: ((vectors(step)[0], vectors(step)[1]), vectors(step)[1]),
        loss=lambda model, x, y: binary_cross_entropy_with_logits(model(*x)[:, 0], (y > 0).float()),
    ),
    "after_step before step": Loop(early=True),
}


@pytest.mark.parametrize("name", ROWS)
def test_slopes_are_true_secants_of_one_loss_and_misuse_gives_a_warning(name: str) -> None:
    loop = ROWS[name]
    torch.manual_seed(0)
    with loop.around():
        model = loop.wrap(loop.model()).train()
        optimizer = loop.optimizer(model)
        recorder = Recorder(model, optimizer, slopes_per_epoch=STEPS, steps_per_epoch=STEPS, **loop.options)
        expected = train(loop, model, optimizer, recorder)
        recorder.record()
    trace = recorder.trace
    assert len(trace.slopes) == len(expected) > 0
    np.testing.assert_allclose(trace.slopes, expected, rtol=loop.tolerance)
    kinds = [*recorder.state()[1]["problems"]]
    if loop.warning is None:
        assert kinds == []
        assert "problems" not in trace.facts
    else:
        assert kinds == [loop.warning]
        assert trace.facts["problems"] == list(recorder.problems)
        assert str(trace).endswith(recorder.problems[0])


def train(loop: Loop, model: nn.Module, optimizer: torch.optim.Optimizer, recorder: Recorder) -> list[float]:
    """Train and return the slope of each step, the plain way: two gradients of the closure, two copies of weights."""
    scaler = torch.amp.GradScaler("cpu", enabled=loop.scaler)
    slopes = []
    moving = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    pending: tuple[list[Tensor], list[Tensor]] | None = None  # weights before and after the step to be measured
    for step in range(STEPS):
        batches = [loop.batch(loop.accumulate * step + part) for part in range(loop.accumulate)]

        def closure(batch: tuple[Any, Tensor] = batches[-1]) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=loop.autocast):
                return loop.loss(model, *batch)

        optimizer.zero_grad()
        if step == loop.freeze_at:
            next(model.children()).requires_grad_(False)
            moving = [parameter for parameter in moving if parameter.requires_grad]
        for batch in batches:
            scaler.scale(closure(batch) / loop.accumulate).backward()  # type: ignore[no-untyped-call]
        if loop.early:
            if pending:
                slopes.append(plain_slope(model, moving, closure, *pending))
            recorder.after_step(closure)
        if loop.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), loop.clip)
        before = [parameter.detach().clone() for parameter in moving]
        scaler.step(optimizer)
        scaler.update()
        pending = before, [parameter.detach().clone() for parameter in moving]
        if not loop.early:
            slopes.append(plain_slope(model, moving, closure, *pending))
            recorder.after_step(closure)
    return slopes


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters() if parameter.requires_grad]


def plain_slope(
    model: nn.Module,
    parameters: list[Tensor],
    closure: Callable[[], Tensor],
    before: list[Tensor],
    after: list[Tensor],
) -> float:
    gradients = []
    for values in (before, after):
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        with model.no_sync() if wrapped else contextlib.nullcontext():  # type: ignore[operator]
            found = torch.autograd.grad(closure(), parameters)
        gradients.append(torch.cat([g.to_dense().flatten() if g.is_sparse else g.flatten() for g in found]))
    moved = torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)])
    return float((gradients[1] - gradients[0]).norm() / moved.norm())


REFUSED: dict[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], str]] = {
    "LBFGS": (lambda model: torch.optim.LBFGS(model.parameters()), "slopes_per_epoch=0"),
    "an optimizer of another model": (lambda _: sgd(classifier()), r"model\.parameters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_unsuitable_optimizers(name: str) -> None:
    optimizer, keyword = REFUSED[name]
    model = classifier()
    with pytest.raises(InputError, match=keyword):
        Recorder(model, optimizer(model))


@pytest.mark.parametrize("parts", [False, True])
def test_rounding_of_autocast_gives_no_slope(parts: bool) -> None:
    """Lightning's training_step calls parts of the module, whose own forward never runs."""
    torch.manual_seed(0)
    model = TakesDict()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    recorder = Recorder(model, optimizer)
    x, y = vectors(0)

    def closure() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.inner(x) if parts else model(features=x, scale=1.0)
            return cross_entropy(logits.float(), y)

    for _ in range(4):
        optimizer.zero_grad()
        closure().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        recorder.after_step(closure)
    recorder.record()
    assert len(recorder.trace.slopes) == 0


def test_lbfgs_can_be_recorded_on_a_probe() -> None:
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x, y = vectors(0)
    recorder = Recorder(model, optimizer, probe=(x, y), gradient="probe", slopes_per_epoch=0)
    for _ in range(3):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        recorder.record()
    assert len(recorder.trace) == 3


CLOSURES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "backward() in the closure": (lambda model: backwards(plain_loss(model, *vectors(0))), "without calling backward"),
    "a closure that returns a number": (lambda model: plain_loss(model, *vectors(0)).item(), "float"),
    "a closure that returns nothing": (lambda _: None, "NoneType"),
    "a closure that returns losses per example": (lambda model: model(vectors(0)[0]).sum(1), "16"),
    "a detached loss": (lambda model: model(vectors(0)[0]).sum().detach(), "gradient"),
}


def backwards(loss: Tensor) -> Tensor:
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


@pytest.mark.parametrize("name", CLOSURES)
def test_refuses_a_wrong_closure_and_keeps_the_gradients(name: str) -> None:
    wrong, keyword = CLOSURES[name]
    model = classifier()
    optimizer = sgd(model)
    recorder = Recorder(model, optimizer)
    plain_loss(model, *vectors(0)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    values = weights(model)
    with pytest.raises(InputError, match=keyword):
        recorder.after_step(lambda: wrong(model))
    after = [parameter.grad for parameter in model.parameters()]
    assert all(a is not None and torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights(model), values, strict=True))


def test_docs_table_has_these_rows() -> None:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [line.split("|")[1].strip() for line in lines[1:]] == [*ROWS, *REFUSED, *CLOSURES]


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_slopes_of_rounded_steps_are_measured_in_float32(precision: str) -> None:
    """Closures of steps in bfloat16 run in float32, as in `train(precision="bf16")`; with TF32, torch rounds both."""
    rounding = tf32 if precision == "tf32" else contextlib.nullcontext
    torch.manual_seed(0)
    model, (x, y) = classifier(), vectors(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    recorder = Recorder(model, optimizer, slopes_per_epoch=3, steps_per_epoch=3)
    expected = []

    def closure() -> Tensor:
        return cross_entropy(model(x), y)

    def state() -> tuple[Tensor, Tensor]:
        model.eval()  # the recorder watches passes in training mode; this model computes the same in both
        gradient = torch.autograd.grad(closure(), list(model.parameters()))
        model.train()
        return parameters_to_vector(gradient), parameters_to_vector(model.parameters()).detach()

    for _ in range(3):
        gradient, parameters = state()
        optimizer.zero_grad()
        with rounding():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = cross_entropy(model(x).float(), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            recorder.after_step(closure)
        gradient_after, parameters_after = state()
        expected.append(float((gradient_after - gradient).norm() / (parameters_after - parameters).norm()))
    recorder.record()
    assert recorder.trace.slopes.tolist() == pytest.approx(expected, rel=1e-3)
    assert recorder.problems == ()
