"""Real images as tensors in memory: `load` a data set by name, walk through its `epoch_batches`."""

from excite.data.augment import AUGMENTATIONS, Augmentation
from excite.data.batches import TrainingData, epoch_batches, steps_per_epoch
from excite.data.dataset import Dataset, Split
from excite.data.self_training.mixture import Mixture
from excite.data.self_training.pseudo_labels import PseudoLabels, load_extra
from excite.data.self_training.rst_pickle import load_pseudo_labelled
from excite.data.self_training.unlabelled import Unlabelled, load_unlabelled
from excite.data.sources.known import (
    DATASETS,
    DatasetStatus,
    data_directory,
    fetch,
    find,
    from_tensors,
    listing,
    load,
    names,
    register,
    verify,
)
from excite.randomness import derive_seed

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Augmentation",
    "Dataset",
    "DatasetStatus",
    "Mixture",
    "PseudoLabels",
    "Split",
    "TrainingData",
    "Unlabelled",
    "data_directory",
    "derive_seed",
    "epoch_batches",
    "fetch",
    "find",
    "from_tensors",
    "listing",
    "load",
    "load_extra",
    "load_pseudo_labelled",
    "load_unlabelled",
    "names",
    "register",
    "steps_per_epoch",
    "verify",
]
