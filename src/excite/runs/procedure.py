"""The paper's procedure in one folder: stages in order, each of which leaves a file and is not done again."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec

from excite.console import Placed, Speaker
from excite.errors import CorruptFileError, DivergedError, InputError, UnidentifiedError
from excite.evaluation import Evaluation, Shards
from excite.evaluation.shards import UNSHARED
from excite.files import clear_away, locked, once, read_as, write_json
from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.runs.arms import OWN, arm_named
from excite.runs.assemble import Parts, assemble, usable_device
from excite.runs.experiment import (
    Experiment,
    check_estimators,
    differences,
    estimator_of,
    every_name,
    is_shared,
    is_wanted,
    options_of,
    own_name,
    without_plan,
)
from excite.runs.folder import RunFolder, StoredRates
from excite.runs.missing import needed_model
from excite.runs.stages.attack import attack, certify, illustrate, shown_arms
from excite.runs.stages.estimate import estimate, leader_of, share
from excite.runs.stages.grid_search import check_search, search
from excite.runs.stages.teach import with_pseudo_labels
from excite.runs.stages.train import check_recording, train
from excite.runs.stored import StoredEstimate, kept
from excite.trace import Trace
from excite.training.distributed import ALONE, Ranks


class Run:
    """An experiment in its folder. A folder that holds another experiment is refused.

    Each method does one stage, after those that it needs; a stage itself never starts another one. `arms` are those
    that it will be asked for, by default the experiment's.
    """

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        *,
        console: Speaker,
        device: str | None = None,
        arms: Sequence[str] = (),
    ) -> None:
        self.folder, self.experiment, self.console, self.device = folder, experiment, console, device
        self._plan: list[Path] = []  # the files that the stages asked for will leave, in order
        if not self.files.exists:
            check_recording(self.parts)  # an experiment that cannot run leaves no folder
            self._check(arms or experiment.arms)
            recorded = self.files.experiment_file
            once(recorded, lambda: write_json(recorded, experiment.to_json()))
        clear_away(folder.rglob(".*.part*"))
        if changes := differences(without_plan(self.files.experiment), without_plan(experiment)):
            check_recording(self.parts)  # settings that never run are the first thing to say
            raise InputError(
                f"{folder} holds another experiment ({'; '.join(changes)}). "
                "Name a new folder with --out, or delete this one."
            )
        if experiment.allow_unidentified and not self.files.experiment.allow_unidentified:
            write_json(self.files.experiment_file, experiment.to_json())  # for those who open the folder later
        if arms:
            self._check(arms)

    @classmethod
    def open(cls, folder: Path, *, console: Speaker, device: str | None = None) -> "Run":
        return cls(folder, RunFolder(folder).experiment, console=console, device=device)

    @property
    def files(self) -> RunFolder:
        """What its stages have left by now."""
        return RunFolder(self.folder)

    @cached_property
    def parts(self) -> Parts:
        assembled = assemble(self.experiment, device=self.device)
        if not self.experiment.mixes and not assembled.objective.needs_pseudo_labels:
            return assembled
        return with_pseudo_labels(assembled, self.folder, console=self.console, device=self.device)

    def all(self, arms: Iterable[str] = (), shards: Shards = UNSHARED) -> RunFolder:
        """Every stage: train and attack each arm, by default the experiment's, and keep what a report shows."""
        chosen = [arm_named(arm).name for arm in arms or self.experiment.arms]
        self._check(chosen)
        self._plan = self._planned(chosen)
        for arm in chosen:
            self.finish(arm, shards)
        if is_wanted(self.experiment):
            self.estimate()
        self.show()
        return self.files

    def _check(self, arms: Iterable[str]) -> None:
        """Refuse arms that cannot run, before anything does; one that is trained already could."""
        chosen = [arm_named(arm) for arm in arms]
        check_estimators(self.experiment, tuple(arm.name for arm in chosen))
        for arm in chosen:
            if self.files.arm(arm.name).trained:
                continue
            if arm.rates is not None:
                check_search(self.parts, arm.rates)
            if arm.size is not None:
                self.parts.in_batches_of(arm.size)

    def _planned(self, arms: Iterable[str]) -> list[Path]:
        files, plan = self.files, list[Path]()
        for arm in arms:
            by, own = arm_named(arm).estimator, files.arm(arm)
            plan += [*([] if by is None else [files.estimate_file(by)]), own.outcome_file, own.evaluation_file]
        return list(dict.fromkeys(plan))

    def finish(self, arm: str, shards: Shards = UNSHARED) -> str | None:
        """Train and attack one arm. Where training diverged, that is its result: it says why."""
        if shards != UNSHARED:
            shards.check(len(self.parts.test))  # before the training rather than after it
        try:
            self.train(arm)
        except DivergedError as error:
            if not self.files.arm(arm).trained:
                raise  # no rate was found to train at
            return str(error)
        finally:
            self.files.arm(arm).tidy()
        self.attack(arm, shards)
        self.attack_best(arm, shards)
        self.files.arm(arm).tidy()
        return None

    def train(self, arm: str, ranks: Ranks = ALONE) -> None:
        """Train one arm. A diverged arm is a result too: it is recorded, and raises now and every time after.

        `ranks` are the processes that do it together. What has to be known first, such as L, the first one finds out.
        """
        chosen, files = arm_named(arm), self.files.arm(arm)
        if not files.trained:
            ranks.from_first(self.parts.prepare)
            if chosen.estimator is not None:
                if self._reads_own_trace(chosen.estimator):
                    self.train("baseline", ranks)
                ranks.from_first(partial(self._reliable_estimate, chosen.estimator))
            if chosen.rates is not None:
                ranks.from_first(partial(self.search, arm))

        def make() -> None:
            known, own = StoredRates(self.files, self.parts.schedule(0)), self.parts.batch_size
            rate = ranks.from_first(partial(chosen.first_rate, known))
            parts = self.parts.in_batches_of(ranks.from_first(partial(chosen.batch_size, own, known)))
            train(parts, files, rate, self._placed(files.outcome_file), ranks, climb=chosen.finds_its_rate)

        ranks.together(partial(self._once, files.outcome_file), make)
        ranks.from_first(partial(once, files.certificate_file, partial(certify, files)))
        if files.problem:
            raise DivergedError(files.problem)

    def estimate(self, name: str = OWN) -> LipschitzEstimate:
        """L by the experiment's own estimator, or by another one; estimated once, where it is shared once per study."""
        stored = self._estimate(name)
        if stored.estimate is None:
            raise InputError(stored.problem)
        return stored.estimate

    def _reliable_estimate(self, name: str) -> None:
        """Estimate L, and refuse to train at it if it is not identified, unless the experiment allows that."""
        found = self.estimate(name)
        if not found.reliable and not self.experiment.allow_unidentified:
            raise UnidentifiedError(
                f"{found} So nothing was trained at it. To train all the same, add --force (in an experiment "
                "allow_unidentified = true); what was run is kept."
            )

    def _estimate(self, name: str) -> StoredEstimate:
        file = self.files.estimate_file(name)
        if not file.exists():
            leader = self._leader(name)
            if leader is not None:
                Run(leader.path, self._of_leader(leader), console=self.console, device=self.device)._estimate(name)
                self._once(file, lambda: share(leader, self.files, name))
            else:
                if self._reads_own_trace(name):
                    self.train("baseline")
                self._once(file, lambda: estimate(self.parts, self.files, self._placed(file), name))
        stored = read_as(file, StoredEstimate)
        if name and stored.options != dict(options_of(self.experiment, name)):
            raise InputError(f"{file} holds the L of other options ({stored.options}). Delete it, or use another name.")
        return stored

    def _of_leader(self, leader: RunFolder) -> Experiment:
        """Its experiment, with the estimators that this run was asked for."""
        return msgspec.structs.replace(leader.experiment, estimators=self.experiment.estimators)

    def _reads_own_trace(self, estimator: str) -> bool:
        """Whether an L comes from the trace of this run's baseline; one that is taken over does not."""
        return self._leader(estimator) is None and estimator_of(self.experiment, estimator).needs == "trace"

    def _leader(self, estimator: str) -> RunFolder | None:
        """The run whose L this one takes over, if the study shares it and another one estimates it."""
        return leader_of(self.files) if is_shared(self.experiment, estimator) else None

    def compare(self, names: Iterable[str]) -> dict[str, LipschitzEstimate | str]:
        """L by several estimators; where one has no answer, why."""
        own = own_name(self.experiment)
        found = {name: self._estimate(OWN if name == own else name) for name in names}
        return {name: stored.estimate or stored.problem for name, stored in found.items()}

    def estimates(self) -> dict[str, LipschitzEstimate | str]:
        """L by the experiment's own way and by every other."""
        return self.compare(every_name(self.experiment))

    def estimates_from_trace(self) -> None:
        """L by every estimator that reads the baseline's trace, if there is one; a figure has them side by side."""
        if self.files.arm("baseline").trace() is not None:
            for name in (name for name, kind in ESTIMATORS.items() if kind.needs == "trace"):
                try:
                    self.compare([name])
                except (InputError, DivergedError) as error:  # of the experiment's own, which no arm needed
                    self.console.say(f"There will be no L by {name}: {error}")

    def show(self) -> None:
        """Keep what a report shows beside the arms: L by every estimator that reads the trace, and a few images."""
        self.estimates_from_trace()
        files = self.files
        shown = tuple(arm.name for arm in shown_arms(files))
        if not shown or not self.experiment.attacks:
            return
        with locked(files.illustration_file, say=self.console.say):
            now = self.files
            if now.illustration is not None and now.illustration.arms == shown:
                return
            try:
                self._keeping(files.illustration_file, lambda: illustrate(self.parts, now))
            except (InputError, CorruptFileError) as error:  # but not a disk that refuses
                self.console.say(f"The page will show no images: {error}")

    def trace(self, arm: str = "baseline") -> Trace:
        """What the recorder noted of an arm's training."""
        self.train(arm)
        return Trace.load(self.files.arm(arm).trace_file)

    def search(self, arm: str) -> float:
        """The best of an arm's grid of rates."""
        files, rates = self.files.arm(arm), arm_named(arm).rates
        if rates is None:
            raise InputError(f"The arm {arm} tries no rates; name one such as grid:5.")
        self._once(files.search_file, lambda: search(self.parts, files, rates, self.console))
        return files.best_of_grid

    def attack(self, arm: str, shards: Shards = UNSHARED) -> Evaluation:
        """Clean and robust accuracy of one trained arm on the test images."""
        files = self.files.arm(arm)
        if not files.evaluation_file.exists():
            needed_model(self.files, arm)
        console = self._placed(files.evaluation_file)
        self._once(files.evaluation_file, lambda: attack(self.parts, files, console, shards))
        return Evaluation.load(files.evaluation_file)

    def attack_best(self, arm: str, shards: Shards = UNSHARED) -> Evaluation | None:
        """The same of the weights that stood best on held-out images, if the experiment keeps them."""
        best = self.files.arm(arm).best
        if not best.has_checkpoint:
            return None
        self._once(best.evaluation_file, lambda: attack(self.parts, best, self.console, shards))
        best.tidy()
        return Evaluation.load(best.evaluation_file)

    def _once(self, file: Path, make: Callable[[], object]) -> None:
        once(file, lambda: self._keeping(file, make), say=self.console.say)

    def _keeping(self, file: Path, make: Callable[[], object]) -> None:
        with kept(self.folder, file, usable_device(self.device)):
            make()

    def _placed(self, file: Path) -> Speaker:
        """The console, which says of a stage that was planned which one it is."""
        if file not in self._plan:
            return self.console
        return Placed(self.console, f"stage {self._plan.index(file) + 1} of {len(self._plan)}")
