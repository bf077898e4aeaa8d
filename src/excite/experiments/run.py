"""The paper's procedure in one folder: every stage leaves a file, and a stage that has left it is not run again."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from excite.data.dataset import unit_floats
from excite.data.seeds import derive_seed
from excite.errors import DivergedError, InputError
from excite.evaluation import Evaluation, evaluate
from excite.experiments.experiment import Experiment, differences, from_values
from excite.experiments.parts import Parts, assemble
from excite.experiments.results import ARMS, ESTIMATE, EVALUATION, EXPERIMENT, OUTCOME, Results, load_results
from excite.files import read_json, write_json
from excite.lipschitz import METHODS, LipschitzEstimate, estimate_lipschitz, find_edge
from excite.schedules import rescale
from excite.trace import Trace
from excite.training import checkpoints, history, train

JOURNAL, TRACE, MOMENTS = "evaluation.journal", "trace.safetensors", "moments"
FEWEST_EDGE_STEPS = 40  # a shorter run tells nothing
EPOCH_TEST_IMAGES = 1000  # after each epoch, for the curves; the table uses all of them


class Console(Protocol):
    """Where progress goes: lines, and tasks that know how far they are."""

    def say(self, text: str) -> None: ...
    def task(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


class Run:
    """An experiment in its folder. A folder that holds another experiment is refused."""

    def __init__(self, folder: Path, experiment: Experiment, *, console: Console, device: str | None = None) -> None:
        self.folder, self.experiment, self.console, self.device = folder, experiment, console, device
        recorded = folder / EXPERIMENT
        if recorded.exists():
            if changes := differences(from_values(read_json(recorded)), experiment):
                raise InputError(
                    f"{folder} holds another experiment ({'; '.join(changes)}). "
                    "Name a new folder with --out, or delete this one."
                )
        else:
            _ = self.parts  # an experiment that cannot run leaves no folder
            write_json(recorded, experiment.to_json())

    @classmethod
    def open(cls, folder: Path, *, console: Console, device: str | None = None) -> "Run":
        return cls(folder, load_results(folder).experiment, console=console, device=device)

    @cached_property
    def parts(self) -> Parts:
        return assemble(self.experiment, device=self.device)

    def all(self) -> Results:
        """Train the baseline, estimate L, train at 1/L and at 2/L, attack all three."""
        for arm in ARMS:
            try:
                self.train(arm)
            except DivergedError:
                if arm == "baseline":
                    raise
            else:
                self.attack(arm)
        return load_results(self.folder)

    def rate(self, arm: str) -> float:
        """η¹: the baseline's own, or a multiple of 1/L."""
        multiple = ARMS[arm].multiple
        return self.parts.schedule(0) if multiple is None else self.estimate().learning_rate(multiple)

    def train(self, arm: str) -> None:
        """Train one arm. A diverged arm is a result too: it is recorded, and raises now and every time after."""
        folder, training = self.folder / arm, self.experiment.training
        if (folder / OUTCOME).exists():
            if problem := read_json(folder / OUTCOME)["problem"]:
                raise DivergedError(problem)
            return
        rate, problem = self.rate(arm), None
        model = self.parts.new_model()
        optimizer = self.parts.new_optimizer(model, rate)
        recorder = self.parts.new_recorder(model, optimizer, folder / MOMENTS)
        with self.console.task(f"{arm}: training at rate {rate:.4g}") as progress, torch.random.fork_rng():
            torch.manual_seed(derive_seed(self.experiment.seed))  # dropout draws from it
            try:
                train(
                    model,
                    self.parts.train,
                    self.parts.objective,
                    optimizer,
                    rescale(self.parts.schedule, rate, horizon=training.epochs),
                    epochs=training.epochs,
                    batch_size=training.batch_size,
                    seed=self.experiment.seed,
                    augment=self.parts.augment,
                    steps=training.steps,
                    folder=folder,
                    recorder=recorder,
                    after_epoch=self._clean_accuracy,
                    on_step=progress,
                )
            except DivergedError as error:
                problem = str(error)
        recorder.trace.save(folder / TRACE)
        seconds = sum(metrics.seconds for metrics in history.read(folder))  # of every process that had a share in it
        write_json(folder / OUTCOME, {"rate": rate, "seconds": seconds, "problem": problem})
        shutil.rmtree(folder / MOMENTS, ignore_errors=True)
        if problem:
            self.console.say(f"{arm}: {problem}")
            raise DivergedError(problem)

    def estimate(self) -> LipschitzEstimate:
        """L by the experiment's method, estimated once."""
        path, settings = self.folder / ESTIMATE, self.experiment.lipschitz
        if path.exists():
            return LipschitzEstimate.from_json(read_json(path)["estimate"])
        started = time.perf_counter()
        estimate = self._edge() if settings.method == "edge" else estimate_lipschitz(self.trace(), settings.method)
        write_json(path, {"estimate": estimate.to_json(), "seconds": time.perf_counter() - started})
        self.console.say(str(estimate))
        return estimate

    def estimates(self) -> dict[str, LipschitzEstimate | str]:
        """L by every method, from the baseline; where one has no answer, why."""
        found: dict[str, LipschitzEstimate | str] = {}
        for method in METHODS:
            try:
                found[method] = estimate_lipschitz(self.trace(), method)
            except InputError as error:
                found[method] = str(error)
        return found | {"edge": self.estimate() if self.experiment.lipschitz.method == "edge" else self._edge()}

    def trace(self, arm: str = "baseline") -> Trace:
        """What the recorder noted of an arm's training."""
        self.train(arm)
        return Trace.load(self.folder / arm / TRACE)

    def _edge(self) -> LipschitzEstimate:
        settings = self.experiment.lipschitz
        whole = self.experiment.training.epochs * self.parts.steps_per_epoch
        steps = settings.steps or max(math.ceil(settings.budget * whole / settings.runs), FEWEST_EDGE_STEPS)
        budget = settings.seeds * settings.runs * steps
        title = f"L by edge: at most {budget // steps} runs of {steps} steps, {budget / whole:.0%} of a training"
        with self.console.task(title) as progress:
            taken = count(1)

            def losses_at(rate: float, draw: int) -> Iterator[float]:
                for loss in self.parts.losses_at(rate, steps, draw):
                    progress(next(taken), budget)
                    yield loss

            return LipschitzEstimate.most_careful(
                [
                    find_edge(
                        partial(losses_at, draw=draw),
                        steps=steps,
                        start=self.parts.schedule(0),
                        ratio=settings.ratio,
                        max_runs=settings.runs,
                    )
                    for draw in range(settings.seeds)
                ]
            )

    def attack(self, arm: str) -> Evaluation:
        """Clean and robust accuracy of one trained arm on the test images."""
        path = self.folder / arm / EVALUATION
        if path.exists():
            return Evaluation.load(path)
        model = checkpoints.load_model(self.folder / arm, self.parts.new_model()).eval()
        device = next(model.parameters()).device
        with self.console.task(f"{arm}: {', '.join(self.parts.attacks)}") as progress:
            evaluation = evaluate(
                model,
                self.parts.test.floats().to(device),
                self.parts.test.labels.to(device),
                self.parts.attacks,
                seed=self.experiment.seed,
                journal=self.folder / arm / JOURNAL,
                progress=lambda _, done, total: progress(done, total),
            )
        evaluation.save(path)
        (self.folder / arm / JOURNAL).unlink(missing_ok=True)
        return evaluation

    def _clean_accuracy(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        images, labels = self.parts.test.images[:EPOCH_TEST_IMAGES], self.parts.test.labels[:EPOCH_TEST_IMAGES]
        evaluation = evaluate(model, unit_floats(images).to(device), labels.to(device), {}, checks=False)
        return {"test_accuracy": evaluation.clean.value}
