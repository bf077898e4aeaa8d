"""Write one self-contained HTML page: the verdict first, then all it rests on, with the file each number is from."""

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import excite
from excite.evaluation.accuracy import Accuracy, MedianRadius
from excite.files import write_text
from excite.lipschitz import ESTIMATORS, LipschitzEstimate
from excite.quantities import pixels
from excite.registry import named_options
from excite.report.findings import Finding, compare_arms, signed
from excite.report.page import origin
from excite.report.page.charts import (
    DotChart,
    LineChart,
    accuracy_dots,
    arm_styles,
    learning_curves,
    radius_curves,
    rate_curves,
)
from excite.report.tables.formats import Cell
from excite.report.tables.run_tables import Row, StudyTable, study_table
from excite.report.tables.study_columns import Column
from excite.report.trainings import (
    Confounders,
    Standing,
    certificates,
    confounders,
    method_of,
    standing_in,
)
from excite.report.verdict import conclude
from excite.runs.arms import OWN, arm_named
from excite.runs.collection import Group, apart, by_seed
from excite.runs.folder import BEST, EVALUATION, EXPERIMENT, OUTCOME, ArmFolder, RunFolder, arm_title, arm_titles
from excite.runs.records import STAGES, Illustration
from excite.training.history import METRICS

PAGE = "report.html"
MOST_DRAWN = 12  # settings of a sweep that get charts; a page stays small
SOURCES = {  # of the table's columns: the file below an arm's folder, or below the run's
    "rate": OUTCOME,
    "clean": EVALUATION,
    "robust": EVALUATION,
    "median": EVALUATION,
    "seeds": EVALUATION,
    "batch": OUTCOME,
    "best": f"{BEST}/{EVALUATION}",
    "best_difference": f"{BEST}/{EVALUATION}",
}
OF_ESTIMATE = ("L", "L_by")  # of the table's columns: those that an arm's L is in


@dataclass(frozen=True)
class Setting:
    """One experiment on the page, over its seeds."""

    title: str  # what sets it apart; nothing where it is the only one
    group: Group
    findings: tuple[Finding, ...]
    dots: list[DotChart]
    curves: list[LineChart]
    radii: list[LineChart]
    commands: list[str]  # nothing where only the TOML file says it all
    toml: str
    files: list[str]  # of the runs, relative to the folder that holds them all


@dataclass(frozen=True)
class ShownCell:
    cell: Cell
    source: str


@dataclass(frozen=True)
class TrainedArm:
    """One arm of one run: what its training and its attacks cost, and what the trust checks said."""

    arm: ArmFolder
    title: str
    run: str
    source: str
    confounders: Confounders


@dataclass(frozen=True)
class CurveRow:
    """One arm under one attack at several radii: ε, accuracy in %, and the accuracy with its interval."""

    run: str
    arm: str
    attack: str
    points: tuple[tuple[str, str, Accuracy], ...]
    median: MedianRadius


@dataclass(frozen=True)
class EstimateRow:
    run: str
    called: str  # by the run
    method: str  # of `ESTIMATORS`
    estimate: LipschitzEstimate | None
    problem: str
    seconds: float | None
    source: str
    used: bool  # by an arm
    preset: bool  # not the experiment's own way
    standing: Standing | None


@named_options
def write_page(runs: RunFolder | Sequence[RunFolder], path: Path | None = None) -> Path:
    """Write the page of one run or of many to `path`, by default report.html in the folder that holds them all."""
    runs = [runs] if isinstance(runs, RunFolder) else runs
    path = path or (runs[0].path if len(runs) == 1 else common_folder(runs)) / PAGE
    write_text(path, page(runs))
    return path


def page(runs: Sequence[RunFolder]) -> str:
    """The page's HTML; nothing in it asks the network for anything."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("excite", "report/page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"signed": signed, "sentence": lambda text: text[:1].upper() + text[1:]}
    groups = by_seed(runs)
    base = common_folder(runs)
    called = [(run, _label(run, base).rstrip("/")) for run in runs]
    styles = arm_styles(groups)
    told_apart = apart([group.experiment for group in groups], shown=("seed", "summary", "arms"))
    assets = resources.files("excite.report.page")
    style, script = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    names = arm_titles(runs)
    return environment.get_template("page.html.j2").render(
        **_examples(runs[0]),
        policy=_policy(style, script),
        style=style,
        script=script,
        title=" and ".join(dict.fromkeys(run.experiment.name for run in runs)),
        summary=" ".join(dict.fromkeys(origin.summary(group.experiment) for group in groups)),
        facts=_facts(groups) | origin.in_short(runs),
        places=origin.places(runs),
        runs=runs,
        first=runs[0],
        verdict=conclude(groups),
        legend=[(names[name], number) for name, number in styles.items()],
        multiples=[found for name in names if (found := arm_named(name)).multiple],
        searches=[found for name in names if (found := arm_named(name)).rates],
        methods=ESTIMATORS,
        table=_table(study_table(groups), groups, base),
        settings=[_setting(group, words, styles, base) for group, words in zip(groups, told_apart, strict=True)],
        drawn=MOST_DRAWN,
        trained=[_trained(run, arm, base) for run in runs for arm in run.arms],
        estimates=list(_estimates(runs, base)),
        certificates=certificates(called),
        curves=list(_curves(runs, base)),
        rates=rate_curves(runs, styles),
        first_run=_label(runs[0], base),
        experiment_file=EXPERIMENT,
        stages_file=STAGES,
        metrics_file=METRICS,
        checkpoint_file=runs[0].arm("baseline").checkpoint_file.name,
        version=excite.__version__,
    )


def common_folder(runs: Sequence[RunFolder]) -> Path:
    """The run's folder, or the innermost folder that holds all of them."""
    return Path(os.path.commonpath([run.path.resolve() for run in runs]))


def _policy(style: str, script: str) -> str:
    """The page may use its own style and script and the images inside it, and nothing else."""
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _facts(groups: Sequence[Group]) -> dict[str, str]:
    """What was trained on what, in a line."""
    experiments = [group.experiment for group in groups]
    seeds = {seed for group in groups for seed in group.seeds}
    facts = {
        "data": ", ".join(dict.fromkeys(experiment.data_set for experiment in experiments)),
        "network": ", ".join(dict.fromkeys(experiment.network for experiment in experiments)),
        "objective": ", ".join(dict.fromkeys(experiment.objective for experiment in experiments)),
        "epochs": ", ".join(dict.fromkeys(str(experiment.training.epochs) for experiment in experiments)),
        "seeds": str(len(seeds)),
    }
    return facts | ({"settings": str(len(groups))} if len(groups) > 1 else {})


def _curves(runs: Sequence[RunFolder], base: Path) -> Iterator[CurveRow]:
    """Accuracy against ε, of every attack that ran at several radii."""
    for run in runs:
        for arm in run.arms:
            for attack, curve in (arm.evaluation.curves if arm.evaluation else {}).items():
                points = zip(curve.eps, curve.accuracies, strict=True)
                yield CurveRow(
                    run=_label(run, base).rstrip("/"),
                    arm=arm_title([arm]),
                    attack=attack,
                    points=tuple((pixels(eps), f"{100 * accuracy.value:.1f}", accuracy) for eps, accuracy in points),
                    median=curve.median,
                )


def _setting(group: Group, title: str, styles: dict[str, int], base: Path) -> Setting:
    return Setting(
        title=title,
        group=group,
        findings=tuple(finding for on in ("clean", *group.experiment.attacks) for finding in compare_arms(group, on)),
        dots=accuracy_dots(group, styles),
        curves=learning_curves(group, styles),
        radii=radius_curves(group, styles),
        commands=origin.commands(group),
        toml=origin.toml(group.experiment),
        files=[_label(run, base) for run in group.runs],
    )


def _table(table: StudyTable, groups: Sequence[Group], base: Path) -> dict[str, Any]:
    """The columns that tell rows apart, each cell with the files it is from; differences have a table of their own."""
    cells = {column: [row.cells[number] for row in table.rows] for number, column in enumerate(table.columns)}
    shown = [
        number
        for number, (column, found) in enumerate(cells.items())
        if column.path[0] != "difference"
        if column.path == ("arm",) or len({cell.text for cell in found}) > 1
    ]
    kinds = {table.columns[number].path[0] for number in shown}
    return {
        "columns": [table.columns[number] for number in shown],
        "rows": [
            [ShownCell(row.cells[number], _source(table.columns[number], row, groups, base)) for number in shown]
            for row in table.rows
        ],
        "notes": [note for note in table.notes if not note.startswith("Δ") or "best_difference" in kinds],
    }


def _source(column: Column, row: Row, groups: Sequence[Group], base: Path) -> str:
    kind = column.path[0]
    if kind == "paper":
        return "the paper"
    if kind in OF_ESTIMATE:
        name = arm_named(row.arm).estimator or OWN
        files = [_estimate_source(run, name, base) for run in groups[row.group].runs]
    elif kind in SOURCES:
        files = [f"{_label(run, base)}{row.arm}/{SOURCES[kind]}" for run in groups[row.group].runs]
    else:
        files = [_label(run, base) + EXPERIMENT for run in groups[row.group].runs]
    return ", ".join(files)


def _label(run: RunFolder, base: Path) -> str:
    """Where a run's files are, seen from the folder that holds them all: "" or "seed-0/"."""
    inner = run.path.resolve().relative_to(base).as_posix()
    return "" if inner == "." else f"{inner}/"


def _estimate_source(run: RunFolder, name: str, base: Path) -> str:
    return _label(run, base) + run.estimate_file(name).relative_to(run.path).as_posix()


def _trained(run: RunFolder, arm: ArmFolder, base: Path) -> TrainedArm:
    label = _label(run, base)
    return TrainedArm(arm, arm_title([arm]), label.rstrip("/"), f"{label}{arm.name}/", confounders(run, arm))


def _estimates(runs: Sequence[RunFolder], base: Path) -> Iterator[EstimateRow]:
    """Each run's own L and those its arms were given; on the page of a single run, what other estimators said, too."""
    for run in runs:
        given = {arm.arm.estimator for arm in run.arms}
        for name, stored in run.estimates.items():
            if len(runs) > 1 and name != OWN and name not in given:
                continue
            found = stored.estimate
            yield EstimateRow(
                run=_label(run, base).rstrip("/"),
                called=name or (found.method if found else method_of(run)),
                method=method_of(run, name),
                estimate=found,
                problem=stored.problem,
                seconds=stored.seconds,
                source=_estimate_source(run, name, base),
                used=name in given,
                preset=name != OWN,
                standing=standing_in(run, found) if found else None,
            )


def _examples(run: RunFolder) -> dict[str, Illustration | str | None]:
    """The attacked images that the run has kept, or how to have some."""
    why = "" if run.illustration else "The run folder keeps no images under attack; `excite run` adds them at its end."
    return {"examples": run.illustration, "no_examples": why}
