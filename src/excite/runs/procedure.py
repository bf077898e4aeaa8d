"""The paper's procedure in one folder: stages in order, each of which writes a file and is not repeated."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec

from excite.console import Placed, Speaker
from excite.errors import DivergedError, InputError, UnidentifiedError
from excite.evaluation import Evaluation, Shards
from excite.execution import UNSHARED
from excite.files import clear_away, locked, once, write_json
from excite.lipschitz import LipschitzEstimate
from excite.randomness import usable_device
from excite.runs.arms import OWN, Arm, arm_named
from excite.runs.assemble import Parts, assemble, check_settings, look_up, with_fingerprint
from excite.runs.experiment import Experiment, differences, renamed, without_wish
from excite.runs.folder import RunFolder, begin_study, run_folders
from excite.runs.records import StoredEstimate, recorded_stage
from excite.runs.stages.attack import attack_arm, certify, illustrate, shown_arms
from excite.runs.stages.rate import check_search, estimate, leader_of, search, share
from excite.runs.stages.teach import with_pseudo_labels
from excite.runs.stages.train import train_arm
from excite.training.distributed import ALONE, Ranks


class Run:
    """An experiment in its folder. A folder that holds another experiment is refused.

    Each method does one stage, after the stages that it needs. `arms` are checked before anything runs; by default
    they are the experiment's.
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
        self.folder, self.console, self.device = folder, console, device
        self.files.refuse_links()
        if not self.files.exists or self.files.experiment.data.fingerprint:
            experiment = with_fingerprint(experiment)
        self.experiment = experiment
        if not self.files.exists:
            _ = self.parts  # an experiment that cannot run leaves no folder
            check_settings(experiment)
            self._check(arms or experiment.arms)
            once(self.files.experiment_file, self._write_experiment)
        if parts := list(folder.rglob(".*.part*")):  # of killed processes
            with locked(self.files.experiment_file):
                clear_away(parts)
        if changes := differences(self.files.experiment, experiment):
            raise InputError(
                f"{folder} holds another experiment ({'; '.join(changes)}). "
                "Name a new folder with --out, or delete this one."
            )
        if experiment.allow_unidentified and not self.files.experiment.allow_unidentified:
            self._write_experiment()  # so that commands which open the folder later know it
        if arms:
            self._check(arms)

    @classmethod
    def open(cls, folder: Path, *, console: Speaker, device: str | None = None) -> "Run":
        return cls(folder, RunFolder(folder).experiment, console=console, device=device)

    def _write_experiment(self) -> None:
        write_json(self.files.experiment_file, self.experiment.to_json())

    @property
    def files(self) -> RunFolder:
        """The files that its stages have written so far."""
        return RunFolder(self.folder)

    @cached_property
    def parts(self) -> Parts:
        parts = assemble(self.experiment, device=self.device)
        if not self.experiment.mixes and not parts.objective.needs_pseudo_labels:
            return parts
        return with_pseudo_labels(parts, self.folder, console=self.console, device=self.device)

    def all(self, arms: Iterable[str] = (), shards: Shards = UNSHARED, ranks: Ranks = ALONE) -> RunFolder:
        """Do every stage: train and attack each arm, by default the experiment's, and store what else a report shows.

        An arm whose L is not identified is not trained. UnidentifiedError names these arms after everything else, or
        at once if several processes train. `ranks` are these processes. The first of them does the other stages.
        """
        names = [arm_named(arm).name for arm in arms or self.experiment.arms]
        self._check(names)
        left_out = []
        for name in names:
            try:
                self.finish(name, shards, ranks)
            except UnidentifiedError as error:
                if ranks.world > 1:
                    raise  # the other processes have ended
                self.console.say(f"{name} is not trained: {error}")
                left_out.append(name)
        ranks.from_first(partial(self.estimates, self.experiment.wanted_estimators()))
        ranks.from_first(self.illustrate)
        if left_out:
            raise UnidentifiedError(
                f"Not trained, because their L is not identified: {', '.join(left_out)}. To train them anyway, add "
                "--force (in an experiment, allow_unidentified = true). Finished stages are kept."
            )
        return self.files

    def _check(self, arms: Iterable[str]) -> None:
        """Refuse arms that cannot run, before anything runs. Trained arms are accepted."""
        self.experiment.check_estimators(arms := tuple(arms))
        for arm in map(arm_named, arms):
            if self.files.arm(arm.name).trained:
                continue
            if arm.rates is not None:
                check_search(self.parts, arm.rates)
            if arm.size is not None:
                self.parts.in_batches_of(arm.size)

    def finish(self, arm: str, shards: Shards = UNSHARED, ranks: Ranks = ALONE) -> str | None:
        """Train and attack one arm. Return the reason if training diverged."""

        def attack() -> None:
            self.attack(arm, shards)

        try:
            self.train(arm, ranks)
            ranks.from_first(attack)
        except DivergedError as error:
            if not self.files.arm(arm).trained:
                raise  # the grid search found no rate, or the baseline diverged
            return str(error)
        return None

    def train(self, name: str, ranks: Ranks = ALONE) -> None:
        """Train one arm and write its certificate, after the stages that give it its rate.

        A diverged training is recorded as a result, and every call raises DivergedError.
        `ranks` are the processes that train together. The first of them does the earlier stages.
        """
        arm = arm_named(name)
        files = self.files.arm(arm.name)
        if ranks.from_first(lambda: not files.trained):
            ranks.from_first(self.parts.prepare)
            if arm.estimator is not None and ranks.from_first(partial(self._lacks_trace, arm.estimator)):
                self.train("baseline", ranks)
        if arm.estimator is not None:
            ranks.from_first(partial(self._reliable_estimate, arm))
        if arm.rates is not None:
            ranks.from_first(partial(self._once, files.search_file, partial(search, self, files, arm.rates)))
        ranks.from_first(lambda: self.files.check_rate(files, look_up(self.experiment).schedule(0)))
        ranks.together(partial(self._once, files.outcome_file), partial(train_arm, self, arm, ranks))

        def conclude() -> str | None:
            for temporary in (files.moments, files.trials):
                shutil.rmtree(temporary, ignore_errors=True)
            once(files.certificate_file, lambda: certify(files))
            return files.problem

        if problem := ranks.from_first(conclude):
            raise DivergedError(problem)

    def estimate(self, name: str = OWN) -> LipschitzEstimate:
        """Estimate L by the experiment's own estimator or another one: once per run, or per study if it is shared."""
        stored = self._estimate(name)
        if stored.estimate is None:
            raise InputError(stored.problem)
        return stored.estimate

    def _reliable_estimate(self, arm: Arm) -> None:
        """Estimate the L of an arm; raise an error if it is not identified, unless the experiment allows that."""
        stored = self._estimate(arm.estimator or OWN)
        if stored.estimate is None:
            raise UnidentifiedError(f"There is no L. {stored.problem}")
        trained = self.files.arm(arm.name).trained  # when that was allowed
        if not stored.estimate.reliable and not self.experiment.allow_unidentified and not trained:
            raise UnidentifiedError(
                f"{stored.estimate} Nothing was trained at this L. To train anyway, add --force (in an experiment, "
                "allow_unidentified = true). Finished stages are kept."
            )

    def _estimate(self, name: str) -> StoredEstimate:
        file = self.files.estimate_file(name)
        if not file.exists():
            if leader := leader_of(self.files, self.experiment, name):
                experiment = msgspec.structs.replace(leader.experiment, estimators=self.experiment.estimators)
                Run(leader.path, experiment, console=self.console, device=self.device)._estimate(name)
                self._once(file, lambda: share(leader, self.files, name))
            else:
                if self._lacks_trace(name):
                    self.train("baseline")
                self._once(file, partial(estimate, self, name))
        stored = StoredEstimate.load(file)
        if name and without_wish(renamed(stored.options)) != without_wish(self.experiment.options_of(name)):
            raise InputError(
                f"{file} was estimated with other options ({stored.options}). Delete it, or use another name."
            )
        return stored

    def _lacks_trace(self, name: str) -> bool:
        """Whether L comes from the trace of this run's baseline, which is not there yet."""
        if leader_of(self.files, self.experiment, name) or self.experiment.estimator_of(name).needs != "trace":
            return False
        return not self.files.estimate_file(name).exists() and self.files.arm("baseline").trace() is None

    def estimates(self, names: Iterable[str] | None = None) -> None:
        """Estimate L by these estimators, by default all; those that have no estimate store the reason."""
        for name in self.experiment.every_estimator() if names is None else names:
            self._estimate(name)

    def attack(self, arm: str, shards: Shards = UNSHARED) -> Evaluation:
        """Evaluate a trained arm on the test images, clean and under attack; also its best and averaged weights."""
        files = self.files.arm(arm)
        if not files.evaluation_file.exists():
            self.files.needed_model(arm)
        for folder in (files, *(weights for weights in files.further if weights.has_checkpoint)):
            self._once(folder.evaluation_file, partial(attack_arm, self, folder, shards))
            folder.journal_file.unlink(missing_ok=True)  # left if the process was killed
        return Evaluation.load(files.evaluation_file)

    def illustrate(self) -> None:
        """Store a few attacked images for the page; again if an arm with weights is not among them."""
        file, arms = self.files.illustration_file, {arm.name for arm in shown_arms(self.files)}
        stored = self.files.illustration.arms if self.files.illustration else ()
        if self.experiment.attacks and not arms <= {*stored}:
            file.unlink(missing_ok=True)
            self._once(file, partial(illustrate, self))

    def _once(self, file: Path, stage: Callable[[], object]) -> None:
        """Do the stage that writes `file`, unless the file exists, and record when and where it ran."""

        def recorded() -> None:
            with recorded_stage(self.folder, file, usable_device(self.device)):
                stage()

        once(file, recorded, say=self.console.say)


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    console: Speaker,
    arms: Sequence[str] = (),
    seeds: int | None = None,
    device: str | None = None,
    shards: Shards = UNSHARED,
    ranks: Ranks = ALONE,
) -> None:
    """Run the whole procedure in `folder`, or for the seeds 0, 1, … in folders inside it, which form a study.

    An L that is not identified at one seed is an error after all others, or at once if several processes train.
    """
    errors = []
    folders = run_folders(experiment, folder, seeds)
    for count, (path, seeded) in enumerate(folders.items(), 1):
        placed = Placed(console, f"seed {count} of {seeds}") if seeds else console
        run = ranks.each(partial(Run, path, seeded, console=placed, device=device, arms=arms))
        if seeds:
            ranks.from_first(partial(begin_study, folder, folders))
        try:
            run.all(arms, shards, ranks)
        except UnidentifiedError as error:
            if ranks.world > 1:
                raise
            errors.append(error)
    if errors:
        raise errors[0]
