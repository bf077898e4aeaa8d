"""Self-training: a teacher learns from the labelled images and labels the others; every arm then trains on both."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from excite.attacks.fast_model import fast_inference
from excite.console import Speaker
from excite.data import Split
from excite.data.catalog import HIDDEN_LABELS
from excite.data.pseudo_labels import (
    Labelling,
    PseudoLabels,
    Unlabelled,
    check_shape,
    comes_labelled,
    load_extra,
    load_unlabelled,
    pseudo_label,
)
from excite.errors import InputError
from excite.files import once
from excite.objectives import OBJECTIVES
from excite.randomness import device_of, undisturbed
from excite.runs.assemble import Parts, assemble, look_up
from excite.runs.experiment import STANDARD, Experiment, Record, Teacher
from excite.runs.folder import RunFolder
from excite.runs.stages.train import epoch_accuracies, fit

if TYPE_CHECKING:
    from excite.runs.procedure import Run


def with_pseudo_labels(parts: Parts, folder: Path, *, console: Speaker, device: str | None = None) -> Parts:
    """Return the same parts, whose `training_set` mixes in the unlabelled images, pseudo-labelled.

    Settings that contradict each other are refused now. The teacher is trained later, when its labels are needed.
    """
    experiment = parts.experiment
    source = unlabelled_source(experiment)
    if experiment.teacher is None:
        return replace(parts, pseudo_labelled=cache(partial(_labelled_already, parts, source)))
    teacher, run = experiment.teacher, RunFolder(folder)

    @cache
    def teacher_parts() -> Parts:
        return assemble(teacher_experiment(experiment, teacher), device=device)

    @cache
    def labelled() -> Split:
        """Return the images with the teacher's labels; train the teacher first if that has not been done."""
        unlabelled = load_unlabelled(source)
        once(
            run.pseudo_labels_file,
            lambda: _teach(teacher_parts(), run, teacher, unlabelled, source=source, console=console),
            say=console.say,
        )
        return PseudoLabels.load(run.pseudo_labels_file).attach(unlabelled)

    if not run.pseudo_labels_file.exists():
        teacher_parts()  # a teacher that cannot be built fails here
    return replace(parts, pseudo_labelled=labelled)


def unlabelled_source(experiment: Experiment) -> str:
    """Return the name of the unlabelled images; refuse contradictory settings."""
    name, teacher, objective = experiment.data.name, experiment.teacher, look_up(experiment).objective
    source = experiment.data.unlabelled or (name if teacher is not None and name in HIDDEN_LABELS else None)
    if source is None:
        raise InputError(
            f"{name} has no unlabelled images, for objective {experiment.objective}. Set data.unlabelled to a file, or "
            f'data.name = "{next(reversed(HIDDEN_LABELS))}" with a [teacher] section. Otherwise leave out [teacher].'
        )
    if not objective.needs_pseudo_labels:
        fitting = next(kind for kind, make in OBJECTIVES.items() if getattr(make, "needs_pseudo_labels", False))
        raise InputError(
            f"The objective {experiment.objective} does not use pseudo-labelled images. Set training.objective = "
            f'{{ kind = "{fitting}" }}, or leave out data.unlabelled and [teacher].'
        )
    if source in HIDDEN_LABELS and HIDDEN_LABELS[source].whole.name == name:
        raise InputError(f'{name} contains the labels that {source} hides. Set data.name = "{source}".')
    labelled = comes_labelled(source)
    if labelled and teacher is not None:
        raise InputError(f"{source} has labels already. Leave out [teacher], or name images without labels.")
    if not labelled and teacher is None:
        raise InputError(
            f"{source} has no labels. Add a [teacher] section, or label it with `excite pseudo-label` and set "
            "data.unlabelled to the resulting file."
        )
    return source


def teacher_experiment(experiment: Experiment, teacher: Teacher) -> Experiment:
    """Return the teacher's experiment: labelled images only; model and training default to the arms', but standard."""
    return msgspec.structs.replace(
        experiment,
        name=f"{experiment.name}, teacher",
        data=msgspec.structs.replace(experiment.data, unlabelled=None),
        model=teacher.model or experiment.model,
        training=teacher.training or msgspec.structs.replace(experiment.training, objective=STANDARD),
        teacher=None,
        record=Record(),
        attacks={},
    )


def _teach(
    parts: Parts, run: RunFolder, teacher: Teacher, unlabelled: Unlabelled, *, source: str, console: Speaker
) -> None:
    """Train the teacher in the run folder and store its labels there."""
    check_shape(unlabelled, parts.train.images.shape[1:])
    model, rate = parts.new_model(), parts.schedule(0)
    with console.task(f"teacher: training at rate {rate:.4g}") as progress:
        fit(
            parts,
            model,
            parts.new_optimizer(model, rate),
            parts.schedule,
            folder=run.teacher,
            after_epoch=lambda model: epoch_accuracies(parts, model),
            on_progress=progress,
        )
    facts = {"run": run.path.name, "experiment": parts.experiment.to_json()}
    options = {"threshold": teacher.threshold, "balance": teacher.balance, "source": source, "teacher": facts}
    labelling = label_with(model, unlabelled, console, "teacher", out=run.pseudo_labels_file, options=options)
    console.say(f"teacher: {labelling}")


def _labelled_already(parts: Parts, source: str) -> Split:
    extra, n_classes = load_extra(source), 1 + int(torch.cat([parts.train.labels, parts.test.labels]).max())
    if (largest := int(extra.labels.max())) >= n_classes:
        raise InputError(
            f"{source} has labels up to {largest}, {parts.experiment.data.name} only up to {n_classes - 1}. "
            "Name images of the same classes."
        )
    return extra


def label_with_run(
    run: "Run", arm: str, source: str, out: Path, *, threshold: float = 0.0, balance: bool = False
) -> Labelling:
    """Label the images of `source` with a trained arm, and write the pseudo-labels to `out`, an .npz file."""
    if out.suffix != ".npz":
        raise InputError(f"Pseudo-labels are written to an .npz file: pass --out {out}.npz.")
    trained = run.files.needed_model(arm)
    unlabelled = load_unlabelled(source)
    check_shape(unlabelled, run.parts.test.images.shape[1:])
    model = trained.load_into(run.parts.new_model())
    facts = {"run": run.folder.name, "arm": arm, "experiment": run.experiment.to_json()}
    options = {"threshold": threshold, "balance": balance, "source": source, "teacher": facts}
    return label_with(model, unlabelled, run.console, arm, out=out, options=options)


def label_with(
    model: nn.Module, unlabelled: Unlabelled, console: Speaker, name: str, *, out: Path, options: Mapping[str, Any]
) -> Labelling:
    """Label the images with the model in eval mode and write the pseudo-labels; the model is left unchanged.

    `options` are those of `pseudo_label`.
    """
    device = device_of(model)
    title = f"{name}: labelling {len(unlabelled):,} images"
    with undisturbed(model, device), console.task(title) as progress:
        predict = fast_inference(model.eval())
        labelling = pseudo_label(lambda images: predict(images.to(device)), unlabelled, on_progress=progress, **options)
    labelling.kept.save(out)
    return labelling
