"""Self-training: a teacher learns from the labelled images and labels the others; every arm then learns from both."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec
import torch
from torch import nn

from excite.console import Speaker
from excite.data import Split
from excite.data.pseudo_labels import (
    PseudoLabels,
    Unlabelled,
    check_shape,
    comes_labelled,
    load_extra,
    load_unlabelled,
)
from excite.data.published import HIDDEN_LABELS
from excite.errors import InputError
from excite.files import once
from excite.objectives import OBJECTIVES
from excite.runs.assemble import Parts, assemble, look_up
from excite.runs.experiment import STANDARD, Experiment, Record, Teacher
from excite.runs.folder import RunFolder
from excite.runs.stages.pseudo_label import label_with
from excite.runs.stages.train import epoch_accuracies


def with_pseudo_labels(parts: Parts, folder: Path, *, console: Speaker, device: str | None = None) -> Parts:
    """The same parts; if the experiment has unlabelled images, `training_set` mixes them in, pseudo-labelled.

    What does not fit together is refused now. A teacher is trained, in the run folder, when its labels are needed.
    """
    experiment = parts.experiment
    source = unlabelled_source(experiment)
    if source is None:
        return parts
    if experiment.teacher is None:
        return replace(parts, pseudo_labelled=partial(_labelled_already, parts, source))
    stage = _Stage(RunFolder(folder), experiment, experiment.teacher, source, console, device)
    if not stage.file.exists():
        _ = stage.parts  # a teacher that cannot be trained is refused
    return replace(parts, pseudo_labelled=stage.labelled)


def unlabelled_source(experiment: Experiment) -> str | None:
    """Where the unlabelled images of an experiment come from, if it has any; refuses what does not fit together."""
    name, teacher, objective = experiment.data.name, experiment.teacher, look_up(experiment).objective
    source = experiment.data.unlabelled or (name if teacher is not None and name in HIDDEN_LABELS else None)
    if source is None:
        if teacher is not None:
            raise InputError(
                f"A teacher finds nothing to label in {name}. Set data.unlabelled, or leave out [teacher]."
            )
        if objective.needs_pseudo_labels:
            raise InputError(
                f"The objective {experiment.objective} needs pseudo-labelled images. Set data.unlabelled to a file "
                f'that has them, or data.name to "{next(reversed(HIDDEN_LABELS))}" and add a [teacher] section.'
            )
        return None
    if not objective.needs_pseudo_labels:
        fitting = next(kind for kind, make in OBJECTIVES.items() if getattr(make, "needs_pseudo_labels", False))
        raise InputError(
            f"There are pseudo-labelled images, of which the objective {experiment.objective} knows nothing. Train "
            f'with training.objective = {{ kind = "{fitting}" }}, or leave out data.unlabelled and [teacher].'
        )
    if source in HIDDEN_LABELS and HIDDEN_LABELS[source].whole.name == name:
        raise InputError(f'{name} shows the labels that {source} hides. Set data.name = "{source}".')
    labelled = comes_labelled(source)
    if labelled and teacher is not None:
        raise InputError(f"{source} has labels already. Leave out [teacher], or give images without labels.")
    if not labelled and teacher is None:
        raise InputError(
            f"{source} has no labels. Add a [teacher] section, or label it with `excite pseudo-label` and set "
            "data.unlabelled to the file that makes."
        )
    return source


def teacher_experiment(experiment: Experiment, teacher: Teacher) -> Experiment:
    """The teacher's own: labelled images alone; by default the model of the arms, and their training but standard."""
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


@dataclass(frozen=True)
class _Stage:
    """The folder in which a teacher is trained and leaves its labels."""

    run: RunFolder
    experiment: Experiment
    settings: Teacher
    source: str
    console: Speaker
    device: str | None

    @property
    def file(self) -> Path:
        return self.run.pseudo_labels_file

    @cached_property
    def parts(self) -> Parts:
        return assemble(teacher_experiment(self.experiment, self.settings), device=self.device)

    def labelled(self) -> Split:
        """The images that the teacher labelled; trains it first if that has not been done."""
        unlabelled = load_unlabelled(self.source)
        once(self.file, partial(self._label, unlabelled), say=self.console.say)
        return PseudoLabels.load(self.file).attach(unlabelled)

    def _label(self, unlabelled: Unlabelled) -> None:
        check_shape(unlabelled, self.parts.train.images.shape[1:])
        model = self._train()
        with self.console.task(f"teacher: labelling {len(unlabelled):,} images") as progress:
            labelling = label_with(
                model,
                unlabelled,
                source=self.source,
                teacher={"run": self.run.path.name, "experiment": self.parts.experiment.to_json()},
                threshold=self.settings.threshold,
                balance=self.settings.balance,
                on_progress=progress,
            )
        labelling.kept.save(self.file)
        self.console.say(f"teacher: {labelling}")

    def _train(self) -> nn.Module:
        parts, rate = self.parts, self.parts.schedule(0)
        model = parts.new_model()
        with self.console.task(f"teacher: training at rate {rate:.4g}") as progress:
            parts.fit(
                model,
                parts.train,
                parts.new_optimizer(model, rate),
                parts.schedule,
                folder=self.run.teacher,
                after_epoch=partial(epoch_accuracies, parts),
                on_progress=progress,
            )
        return model


def _labelled_already(parts: Parts, source: str) -> Split:
    extra, classes = load_extra(source), 1 + int(torch.cat([parts.train.labels, parts.test.labels]).max())
    if (largest := int(extra.labels.max())) >= classes:
        raise InputError(
            f"The labels of {source} reach {largest}, those of {parts.experiment.data.name} {classes - 1}. "
            "Give images of the same classes."
        )
    return extra
