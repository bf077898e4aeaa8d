"""The columns of Tables 1 and 2: what each says of one arm of one experiment, over its seeds."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from excite.evaluation import Accuracy, Evaluation
from excite.evaluation.accuracy import MedianRadius
from excite.evaluation.comparison import paired_difference
from excite.evaluation.result import Flag
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.tables.formats import Cell, Value
from excite.report.tables.published import PublishedAccuracy, PublishedArm, PublishedRow, published_row
from excite.report.trainings import Confounders, called, confounders, doubted_together, options_behind, standing_in
from excite.runs.arms import OWN, arm_named
from excite.runs.collection import Group
from excite.runs.folder import ArmFolder, RunFolder, arm_title

NOTHING = Cell("–", None)
DAGGER = "†"
Pair = tuple[Evaluation, Evaluation]  # the baseline's and the arm's


@dataclass(frozen=True)
class Column:
    """A heading, and where its values stand in JSON: `("robust", "PGD-20")`."""

    title: str
    path: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StudyArm:
    """One arm of one group, over its seeds."""

    name: str
    title: str
    group: Group
    apart: str
    results: tuple[ArmFolder, ...]  # of the seeds at which it was trained
    published: PublishedRow | None

    @property
    def evaluations(self) -> dict[int, Evaluation]:
        """By seed, where there is one."""
        return evaluations_of(self.group, self.name)

    @property
    def best(self) -> dict[int, Evaluation]:
        """By seed, of the weights that stood best on held-out images, where they were kept."""
        return evaluations_of(self.group, self.name, best=True)

    @property
    def confounders(self) -> list[Confounders]:
        """Of every seed at which it was trained."""
        return [confounders(run, arm) for run in self.group.runs for arm in run.arms if arm.name == self.name]

    @property
    def diverged(self) -> int:
        return sum(result.problem is not None for result in self.results)

    @property
    def lost(self) -> bool:
        """Whether it diverged or learned nothing at one of its seeds: those that remain are the lucky ones."""
        return self.diverged > 0 or any(evaluation.learned_nothing for evaluation in self.evaluations.values())

    @property
    def doubts(self) -> list[tuple[str, Flag]]:
        """What the trust checks warn of, each warning once, with a name for the weights."""
        return list(dict.fromkeys(doubt for result in self.results for doubt in result.doubts))

    @property
    def stated(self) -> PublishedArm | None:
        return self.published.arms.get(self.name) if self.published else None


def arms_of(group: Group, apart: str) -> list[StudyArm]:
    published = published_row(group.experiment)
    return [
        StudyArm(name, arm_title(arms), group, apart, tuple(arms), published)
        for name in group.arm_names
        if (arms := group.arms(name))
    ]


def columns_for(arms: Sequence[StudyArm]) -> dict[Column, Callable[[StudyArm], Cell]]:
    """What is the same everywhere, or nowhere, gets no column: objective, settings, the paper's numbers."""
    attacks = list(dict.fromkeys(name for arm in arms for ev in arm.evaluations.values() for name in ev.attacks))
    columns: dict[Column, Callable[[StudyArm], Cell]] = {
        Column("data", ("data",)): lambda arm: _text(arm.group.experiment.data_set),
        Column("model", ("model",)): lambda arm: _text(arm.group.experiment.network),
    }
    if not all(arm.group.experiment.trains_plainly for arm in arms):
        columns[Column("objective", ("objective",))] = lambda arm: _text(arm.group.experiment.objective)
    if any(arm.apart for arm in arms):
        columns[Column("setting", ("setting",))] = lambda arm: _text(arm.apart)
    columns |= {
        Column("arm", ("arm",)): lambda arm: Cell(arm.title, arm.name, arm.name),
        Column("seeds", ("seeds",)): _seeds,
        Column("rate η¹", ("rate",)): lambda arm: _range([result.rate for result in arm.results]),
        Column("L", ("L",)): constant,
        Column("by", ("L_by",)): _method,
        Column("epochs", ("epochs",)): lambda arm: _number(arm.group.experiment.training.epochs),
        Column("batch", ("batch",)): lambda arm: _range([one.batch_size for one in arm.confounders]),
        Column("clean %", ("clean",)): partial(_accuracy, on="clean"),
    }
    columns |= {Column(f"{attack} %", ("robust", attack)): partial(_accuracy, on=attack) for attack in attacks}
    columns |= {
        Column(f"median minimal ε, {attack}", ("median", attack)): partial(_median, on=attack)
        for attack in attacks
        if any(_medians(arm, attack) for arm in arms)
    }
    columns |= {Column(f"Δ {on}", ("difference", on)): partial(_difference, on=on) for on in ("clean", *attacks)}
    if any(arm.best for arm in arms):
        for on in ("clean", *attacks):
            columns[Column(f"best: {on} %", ("best", on))] = partial(_best_accuracy, on=on)
        columns |= {
            Column(f"best: Δ {on}", ("best_difference", on)): partial(_best_difference, on=on)
            for on in ("clean", *attacks)
        }
    if any(arm.stated for arm in arms):
        columns |= {
            Column("paper: clean %", ("paper", "clean")): lambda arm: _stated(arm.stated.clean if arm.stated else None),
            Column("paper: robust %", ("paper", "robust")): lambda arm: _stated(
                arm.stated.robust if arm.stated else None
            ),
            Column("paper: L, (M, N), epochs, batch", ("paper", "settings")): _published_settings,
        }
    if any(arm.stated and arm.stated.logged for arm in arms):
        columns[Column("released log: clean / robust %", ("paper", "released_log"))] = _logged
    return columns


def _text(text: str) -> Cell:
    return Cell(text, text, text) if text else NOTHING


def _number(number: int) -> Cell:
    return Cell(f"{number}", number, number)


def _range(values: Sequence[float]) -> Cell:
    """The mean over seeds and, where they differ, from where to where they go."""
    mean, low, high = statistics.mean(values), min(values), max(values)
    text = f"{mean:.4g}" if high - low <= 1e-9 * high else f"{mean:.3g} ({low:.3g}–{high:.3g})"
    return Cell(text, {"mean": mean, "low": low, "high": high}, mean)


def _seeds(arm: StudyArm) -> Cell:
    evaluated, runs = len(arm.evaluations), len(arm.group.runs)
    text = f"{runs}" if evaluated == runs else f"{evaluated} of {runs}"
    if arm.diverged:
        text += f" ({arm.diverged} diverged)"
    return Cell(text, {"evaluated": evaluated, "diverged": arm.diverged, "runs": runs}, evaluated)


def _estimates(arm: StudyArm) -> dict[RunFolder, LipschitzEstimate]:
    """By run, L as this arm was given it."""
    return {run: found for run in arm.group.runs if (found := run.estimate_of(arm.name))}


def constant(arm: StudyArm) -> Cell:
    estimates = _estimates(arm)
    if not estimates:
        return NOTHING
    cell = _range([estimate.constant for estimate in estimates.values()])
    identified = all(estimate.identified for estimate in estimates.values())
    together = called(arm_named(arm.name).estimator or OWN) in doubted_together(arm.group.runs)
    trusted = not together and all(standing_in(run, estimate).trusted for run, estimate in estimates.items())
    value = cell.value if isinstance(cell.value, dict) else {}
    facts = {"identified": identified, "trusted": trusted}
    return Cell(cell.text if trusted else f"{cell.text} ?", value | facts, cell.order)


def _method(arm: StudyArm) -> Cell:
    """How L was found, (M, N) where the method has them, and whether the seeds share it."""
    name, runs = arm_named(arm.name).estimator or OWN, arm.group.runs
    constants = {estimate.constant for estimate in _estimates(arm).values()}
    asked = any(options_behind(run, name).get("shared") for run in runs if name in run.estimates)
    shared = len(runs) > 1 and asked and len(constants) == 1
    words = dict.fromkeys(
        f"{estimate.method} ({estimate.details['M']}, {estimate.details['N']})"
        if "M" in estimate.details
        else estimate.method
        for estimate in _estimates(arm).values()
    )
    return _text(", ".join([*words, *(["one for all seeds"] if shared and words else [])]))


def _accuracy(arm: StudyArm, on: str) -> Cell:
    return _mean_accuracy(arm, arm.evaluations, on)


def _best_accuracy(arm: StudyArm, on: str) -> Cell:
    return _mean_accuracy(arm, arm.best, on)


def _mean_accuracy(arm: StudyArm, evaluations: Mapping[int, Evaluation], on: str) -> Cell:
    found = [_measured(evaluation, on) for evaluation in evaluations.values()]
    accuracies = [accuracy for accuracy in found if accuracy]
    if not accuracies:
        return Cell("diverged", None) if arm.diverged else NOTHING
    dagger = f" {DAGGER}" if on != "clean" and any(evaluation.flags for evaluation in evaluations.values()) else ""
    mean = 100 * statistics.mean(accuracy.value for accuracy in accuracies)
    value: dict[str, Value] = {"mean": mean, "sd": None, "low": None, "high": None, "images": accuracies[0].total}
    if len(accuracies) == 1:
        value["low"], value["high"] = (100 * bound for bound in accuracies[0].interval)
        return Cell(f"{mean:.2f} ({value['low']:.2f}–{value['high']:.2f}){dagger}", value, mean)
    deviation = value["sd"] = 100 * statistics.stdev(accuracy.value for accuracy in accuracies)
    return Cell(f"{mean:.2f} ± {deviation:.2f}{dagger}", value, mean)


def _measured(evaluation: Evaluation, on: str) -> Accuracy | None:
    return evaluation.clean if on == "clean" else evaluation.robust.get(on)


def _medians(arm: StudyArm, on: str) -> list[MedianRadius]:
    return [evaluation.curves[on].median for evaluation in arm.evaluations.values() if on in evaluation.curves]


def _median(arm: StudyArm, on: str) -> Cell:
    medians = _medians(arm, on)
    if not medians:
        return NOTHING
    radii, first = [median.value for median in medians], medians[0]
    if len(medians) == 1:
        found = first.to_json()
        low, high = found["interval"]
        return Cell(str(first), {"mean": found["eps"], "sd": None, "low": low, "high": high}, first.value)
    if math.isinf(max(radii)):
        return Cell(f"{first.words(math.inf)} at {radii.count(math.inf)} of {len(radii)} seeds", None, math.inf)
    mean, deviation = statistics.mean(radii), statistics.stdev(radii)
    value = {"mean": mean, "sd": deviation, "low": None, "high": None}
    return Cell(f"{first.words(mean)} ± {first.words(deviation)}", value, mean)


def _difference(arm: StudyArm, on: str) -> Cell:
    return _paired(arm, evaluations_of(arm.group, "baseline"), arm.evaluations, on)


def _best_difference(arm: StudyArm, on: str) -> Cell:
    return _paired(arm, evaluations_of(arm.group, "baseline", best=True), arm.best, on)


def _paired(arm: StudyArm, baselines: Mapping[int, Evaluation], own: Mapping[int, Evaluation], on: str) -> Cell:
    pairs = list(paired(baselines, own, on).values())
    if arm.name == "baseline" or not pairs:
        return NOTHING
    found = paired_difference(pairs, on)
    difference, low, high = (100 * number for number in (found.difference, *found.interval))
    value = {"difference": difference, "low": low, "high": high, "seeds": found.seeds}
    fewer = f" at {found.seeds} of {len(arm.group.runs)} seeds" if found.seeds < len(arm.group.runs) else ""
    text = f"{difference:+.2f} ({low:+.2f} to {high:+.2f}){fewer}".replace("-", "−")
    return Cell(text, value, difference)


def paired(baselines: Mapping[int, Evaluation], own: Mapping[int, Evaluation], on: str) -> dict[int, Pair]:
    """By seed, where both were measured on `on`."""
    return {
        seed: (baselines[seed], evaluation)
        for seed, evaluation in own.items()
        if seed in baselines and _measured(evaluation, on) and _measured(baselines[seed], on)
    }


def evaluations_of(group: Group, name: str, *, best: bool = False) -> dict[int, Evaluation]:
    return {
        run.experiment.seed: evaluation
        for run in group.runs
        for result in run.arms
        if result.name == name and (evaluation := (result.best if best else result).evaluation)
    }


def _stated(figure: PublishedAccuracy | None) -> Cell:
    return NOTHING if figure is None else Cell(str(figure), {"mean": figure.mean, "sd": figure.deviation}, figure.mean)


def _published_settings(arm: StudyArm) -> Cell:
    row = arm.published
    if row is None or arm.stated is None:
        return NOTHING
    value: dict[str, Value] = {
        "L": row.constant,
        "M": row.n_maxima,
        "N": row.n_points,
        "epochs": row.epochs,
        "batch": row.batch_size,
        "attack": row.attack,
    }
    text = f"{row.constant:g}, ({row.n_maxima}, {row.n_points}), {row.epochs}, {row.batch_size}"
    return Cell(text, value, row.constant)


def _logged(arm: StudyArm) -> Cell:
    if not (arm.stated and arm.stated.logged):
        return NOTHING
    clean, robust = arm.stated.logged
    return Cell(f"{clean:.2f} / {robust:.2f}", {"clean": clean, "robust": robust}, robust)
