"""The paper's procedure in one folder: every stage leaves a file, and a stage that has left it is not run again."""

import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, cast

from excite.errors import DivergedError, InputError
from excite.evaluation import Evaluation, evaluate
from excite.files import expected, read_json, write_json
from excite.lipschitz import METHODS, LipschitzEstimate, estimate_lipschitz
from excite.runs.arms import arm_named
from excite.runs.assemble import Parts, assemble
from excite.runs.experiment import Experiment, differences, without_plan
from excite.runs.folder import ArmFolder, RunFolder
from excite.runs.once import once
from excite.runs.stages.edge_search import most_steps, search_edge
from excite.runs.stages.epoch_accuracies import check_recording, epoch_accuracies
from excite.runs.stages.grid_search import grid_search
from excite.runs.stages.teach import with_pseudo_labels
from excite.schedules import rescale
from excite.trace import Trace
from excite.training.distributed import ALONE, Ranks


class Console(Protocol):
    """Where progress goes: lines, and tasks that know how far they are."""

    def say(self, text: str) -> None: ...
    def task(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


class Run:
    """An experiment in its folder. A folder that holds another experiment is refused."""

    def __init__(self, folder: Path, experiment: Experiment, *, console: Console, device: str | None = None) -> None:
        self.folder, self.experiment, self.console, self.device = folder, experiment, console, device
        if not self.files.exists:
            check_recording(self.parts)  # an experiment that cannot run leaves no folder
            recorded = self.files.experiment_file
            once(recorded, lambda: write_json(recorded, experiment.to_json()))
        if changes := differences(without_plan(self.files.experiment), without_plan(experiment)):
            raise InputError(
                f"{folder} holds another experiment ({'; '.join(changes)}). "
                "Name a new folder with --out, or delete this one."
            )

    @classmethod
    def open(cls, folder: Path, *, console: Console, device: str | None = None) -> "Run":
        return cls(folder, RunFolder(folder).experiment, console=console, device=device)

    @property
    def files(self) -> RunFolder:
        """What its stages have left by now."""
        return RunFolder(self.folder)

    @cached_property
    def parts(self) -> Parts:
        assembled = assemble(self.experiment, device=self.device)
        return with_pseudo_labels(assembled, self.folder, console=self.console, device=self.device)

    def all(self, arms: Iterable[str] = ()) -> RunFolder:
        """Train and attack each arm, by default the experiment's: the baseline, 1/L and 2/L once L is estimated."""
        for arm in arms or self.experiment.arms:
            self.finish(arm_named(arm).name)
        return self.files

    def finish(self, arm: str) -> str | None:
        """Train and attack one arm. Where training diverged, that is its result: it says why."""
        try:
            self.train(arm)
        except DivergedError as error:
            if not self.files.arm(arm).trained:
                raise  # no rate was found to train at
            return str(error)
        self.attack(arm)
        return None

    def rate(self, arm: str) -> float:
        """η¹: the baseline's own, a multiple of 1/L, or the one that a grid search prefers."""
        chosen = arm_named(arm)
        if chosen.multiple:
            return self.estimate().learning_rate(chosen.multiple)
        if chosen.rates:
            return self._search(arm, chosen.rates)
        return self.parts.schedule(0)

    def train(self, arm: str, ranks: Ranks = ALONE) -> None:
        """Train one arm. A diverged arm is a result too: it is recorded, and raises now and every time after.

        `ranks` are the processes that do it together. What has to be known first, such as L, the first one finds out.
        """
        files = self.files.arm(arm)
        ranks.together(partial(once, files.outcome_file, say=self.console.say), partial(self._train, files, ranks))
        if files.problem:
            raise DivergedError(files.problem)

    def _train(self, files: ArmFolder, ranks: Ranks) -> None:
        arm = files.name
        if arm_named(arm).multiple and self.experiment.lipschitz.method != "edge":
            self.train("baseline", ranks)  # L comes from its trace
        ranks.from_first(self.parts.prepare)
        rate, problem = ranks.from_first(partial(self.rate, arm)), None
        model = self.parts.new_model()
        optimizer = self.parts.new_optimizer(model, rate)
        recorder = self.parts.new_recorder(model, optimizer, files.moments)
        with self.console.task(f"{arm}: training at rate {rate:.4g}") as progress:
            try:
                self.parts.fit(
                    model,
                    self.parts.training_set,
                    optimizer,
                    rescale(self.parts.schedule, rate, horizon=self.experiment.training.epochs),
                    folder=files.path,
                    recorder=recorder,
                    after_epoch=partial(epoch_accuracies, self.parts),
                    on_step=progress,
                    ranks=ranks,
                )
            except DivergedError as error:
                problem = str(error)

        def conclude() -> None:
            recorder.trace.save(files.trace_file)
            seconds = sum(metrics.seconds for metrics in files.epochs)  # of every process before this one, too
            files.end(rate=rate, seconds=seconds, problem=problem)
            shutil.rmtree(files.moments, ignore_errors=True)
            if problem:
                self.console.say(f"{arm}: {problem}")

        ranks.from_first(conclude)

    def estimate(self) -> LipschitzEstimate:
        """L by the experiment's method, estimated once."""
        once(self.files.estimate_file, self._estimate, say=self.console.say)
        return cast("LipschitzEstimate", self.files.estimate)

    def _estimate(self) -> None:
        method = self.experiment.lipschitz.method
        started = time.perf_counter()
        estimate = self._edge() if method == "edge" else estimate_lipschitz(self.trace(), method)
        write_json(self.files.estimate_file, {"estimate": estimate.to_json(), "seconds": time.perf_counter() - started})
        self.console.say(str(estimate))

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
        return Trace.load(self.files.arm(arm).trace_file)

    def _edge(self) -> LipschitzEstimate:
        settings, whole = self.experiment.lipschitz, self.parts.whole_training
        runs, budget = settings.seeds * settings.runs, most_steps(settings, whole)
        title = f"L by edge: at most {runs} runs of {budget // runs} steps, {budget / whole:.0%} of a training"
        with self.console.task(title) as progress:
            return search_edge(self.parts, progress)

    def _search(self, arm: str, rates: int) -> float:
        files = self.files.arm(arm)
        if not files.search_file.exists():
            with self.console.task(f"{arm}: trying {rates} rates") as progress:
                search = grid_search(self.parts, rates, folder=files.trials, on_step=progress)
            write_json(files.search_file, search.to_json())
            shutil.rmtree(files.trials)
            self.console.say(str(search))
        with expected(files.search_file):
            return float(read_json(files.search_file)["winner"])

    def attack(self, arm: str) -> Evaluation:
        """Clean and robust accuracy of one trained arm on the test images."""
        files = self.files.arm(arm)
        once(files.evaluation_file, partial(self._attack, files), say=self.console.say)
        return Evaluation.load(files.evaluation_file)

    def _attack(self, files: ArmFolder) -> None:
        model = files.load_into(self.parts.new_model()).eval()
        device = next(model.parameters()).device
        with self.console.task(f"{files.name}: {', '.join(self.parts.attacks)}") as progress:
            evaluation = evaluate(
                model,
                self.parts.test.floats().to(device),
                self.parts.test.labels.to(device),
                self.parts.attacks,
                seed=self.experiment.seed,
                journal=files.journal_file,
                progress=lambda _, done, total: progress(done, total),
            )
        evaluation.save(files.evaluation_file)
        files.journal_file.unlink(missing_ok=True)
