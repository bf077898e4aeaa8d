"""Ways to pick a learning rate within a given number of steps: ours, and those of other packages."""

import contextlib
import io
import logging
import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from excite.data.batches import epoch_batches
from excite.lipschitz import find_edge
from excite.runs.assemble import Parts
from excite.runs.stages.rate import hold_out
from excite.training import descend

CUSTOMARY = 0.1
FIVE = (0.01, 0.03, 0.1, 0.3, 1.0)
SWEEP = 100  # steps: the default of both range tests
SMALLEST, LARGEST = 1e-7, 100.0  # the range in torch-lr-finder's own example


@dataclass(frozen=True)
class Pick:
    method: str
    rate: float
    steps: int  # spent on the search
    note: str = ""


def customary(parts: Parts, budget: int) -> list[Pick]:  # noqa: ARG001
    return [Pick("customary 0.1", CUSTOMARY, 0)]


def by_edge(parts: Parts, budget: int) -> list[Pick]:
    found = find_edge(parts.losses_at, budget=budget, start=CUSTOMARY)
    note = f"L ≤ {found.constant:.4g}, {'identified' if found.identified else 'not identified'}"
    rates = {"1/L (certified)": found.learning_rate(1), "2/L (certified)": found.learning_rate(2)}
    spent = found.details["spent"]
    return [Pick(name, rate, spent, note) for name, rate in rates.items()]


def grid_of_five(parts: Parts, budget: int) -> list[Pick]:
    """Split the budget between five rates; pick the best one on a held-out tenth of the training images."""
    rest, held_out = hold_out(parts.train, parts.experiment.seed)
    steps = budget // len(FIVE)
    images, labels = held_out.floats(), held_out.labels
    reached = {}
    for rate in FIVE:
        model = parts.new_model().train()
        losses = descend(model, _batches(parts, rest), parts.objective, parts.new_optimizer(model, rate))
        for _ in islice(losses, steps):
            pass
        with torch.no_grad():
            reached[rate] = float((model.eval()(images).argmax(1) == labels).double().mean())
    note = ", ".join(f"{rate:g}: {accuracy:.3f}" for rate, accuracy in reached.items())
    return [Pick("grid of five", max(reached, key=lambda rate: (reached[rate], -rate)), steps * len(FIVE), note)]


def by_torch_lr_finder(parts: Parts, budget: int) -> list[Pick]:
    return [_median_of_sweeps("torch-lr-finder", _torch_lr_finder, parts, budget)]


def by_lightning(parts: Parts, budget: int) -> list[Pick]:
    return [_median_of_sweeps("Lightning lr_find", _lightning, parts, budget)]


PICKERS: tuple[Callable[[Parts, int], list[Pick]], ...] = (
    customary,
    by_edge,
    grid_of_five,
    by_torch_lr_finder,
    by_lightning,
)


def _batches(parts: Parts, split: Any) -> Iterator[tuple[Tensor, Tensor]]:
    training = parts.experiment.training
    for epoch in range(training.epochs):
        yield from epoch_batches(split, batch_size=training.batch_size, seed=parts.experiment.seed, epoch=epoch)


Sweep = Callable[[nn.Module, DataLoader[Any], Parts], tuple[float | None, int]]


def _median_of_sweeps(name: str, sweep: Sweep, parts: Parts, budget: int) -> Pick:
    """Median of as many sweeps as the budget allows, each with new weights and a new order; some find no rate."""
    found, spent = [], 0
    while spent + SWEEP <= budget:
        draw = spent  # different for each sweep
        torch.manual_seed(1000 * parts.experiment.seed + draw)
        loader = DataLoader(
            TensorDataset(parts.train.floats(), parts.train.labels), parts.experiment.training.batch_size, shuffle=True
        )
        rate, steps = sweep(parts.new_model(draw=draw), loader, parts)
        spent += steps
        if rate is not None and math.isfinite(rate) and rate > 0:
            found.append(rate)
    return Pick(name, statistics.median(found), spent, "sweeps: " + " ".join(f"{rate:.3g}" for rate in found))


def _torch_lr_finder(model: nn.Module, loader: DataLoader[Any], parts: Parts) -> tuple[float | None, int]:
    from matplotlib.figure import Figure
    from torch_lr_finder import LRFinder

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        finder = LRFinder(model, parts.new_optimizer(model, SMALLEST), cross_entropy)
        finder.range_test(loader, end_lr=LARGEST, num_iter=SWEEP)
        steps = len(finder.history["lr"])
        try:
            _, rate = finder.plot(ax=Figure().subplots())
        except (ValueError, IndexError):  # too few points
            return None, steps
    return float(rate), steps


def _lightning(model: nn.Module, loader: DataLoader[Any], parts: Parts) -> tuple[float | None, int]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lr = model, CUSTOMARY

        def training_step(self, batch: Sequence[Tensor], _: int) -> Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return parts.new_optimizer(model, self.lr)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=parts.experiment.training.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        with contextlib.redirect_stderr(io.StringIO()):
            found = lightning.pytorch.tuner.Tuner(trainer).lr_find(Module(), train_dataloaders=loader)
    assert found is not None
    return found.suggestion(), len(found.results["loss"])


def with_model(parts: Parts, build: Callable[[], nn.Module]) -> Parts:
    """The same experiment with a network that is not in the registry."""

    def new_model(draw: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1000 * parts.experiment.seed + draw)
            return build()

    return replace(parts, new_model=new_model)
