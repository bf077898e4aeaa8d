"""Choose a batch size by the paper's heuristic, from one baseline training per size."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from excite import data
from excite.errors import DivergedError, InputError
from excite.excitation import FEWEST_MOMENTS, acuteness, choose_batch_size
from excite.runs.experiment import Experiment

if TYPE_CHECKING:
    from excite.runs.procedure import Run


@dataclass(frozen=True)
class BatchSizeChoice:
    """For each batch size, the share of epochs at which Assumption 2 holds and the clean accuracy; and the choice."""

    fractions: dict[int, float]
    accuracies: dict[int, float]
    threshold: float
    chosen: int | None
    conclusion: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"batch {size}: Assumption 2 holds in {self.fractions[size]:.0%} of the epochs, "
            f"clean accuracy {self.accuracies[size]:.2%}"
            for size in sorted(self.fractions)
        ]
        return "\n".join([*lines, self.conclusion])


def papers_threshold(data_set: str) -> float:
    """The clean accuracy that the paper requires: 0.6 with 100 classes, otherwise 0.8."""
    return 0.6 if data.find(data_set).num_classes == 100 else 0.8


def check_sizes(experiment: Experiment, sizes: Iterable[int]) -> None:
    """Refuse batch sizes larger than an epoch, and trainings of too few epochs."""
    images = experiment.epoch_images(experiment.data.train_examples or data.find(experiment.data.name).train_images)
    if too_large := [size for size in sizes if size > images]:
        raise InputError(
            f"An epoch has {images:,} images, too few for batches of {max(too_large):,}. Try at most {images}."
        )
    if experiment.training.epochs < FEWEST_MOMENTS:
        raise InputError(
            f"Assumption 2 is evaluated from epoch to epoch, and {experiment.training.epochs} epochs are too few. "
            f"Train at least {FEWEST_MOMENTS}."
        )


def try_batch_sizes(runs: Mapping[int, "Run"], threshold: float | None = None) -> BatchSizeChoice:
    """Train the baseline of each run and choose a batch size; sizes that diverge are left out."""
    if threshold is None:
        threshold = papers_threshold(next(iter(runs.values())).experiment.data.name)
    fractions, accuracies = {}, {}
    for size, run in runs.items():
        try:
            fractions[size] = acuteness(run.trace("baseline")).fraction
        except DivergedError as error:
            run.console.say(f"batch {size}: {error}")
        else:
            accuracies[size] = run.files.arm("baseline").epochs[-1].extra["test_accuracy"]
    if not fractions:
        raise DivergedError("Training diverged at every batch size. Give the baseline a lower rate.")
    try:
        chosen = choose_batch_size(fractions, accuracies, threshold)
    except InputError as error:
        return BatchSizeChoice(fractions, accuracies, threshold, None, str(error))
    most = max(fractions.values())
    start = "with Assumption 2" if most >= 1 else f"at which Assumption 2 holds most often, in {most:.0%} of the epochs"
    conclusion = f"Choose {chosen}: from the smallest size {start}, down to an accuracy of {threshold:.0%}."
    return BatchSizeChoice(fractions, accuracies, threshold, chosen, conclusion)
