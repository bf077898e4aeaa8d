"""Real images as tensors in memory: `load` a data set by name, walk through its `epoch_batches`."""

from excite.data.augment import AUGMENTATIONS, Augmentation
from excite.data.batches import epoch_batches, steps_per_epoch
from excite.data.catalogue import DatasetStatus, fetch, from_tensors, listing, load, names, verify
from excite.data.dataset import Dataset, Split
from excite.data.mixture import Mixture
from excite.data.pseudo_labelled import load_pseudo_labelled
from excite.data.pseudo_labels import PseudoLabels, load_extra
from excite.data.seeds import derive_seed
from excite.data.store import data_directory
from excite.data.unlabelled import Unlabelled, load_unlabelled

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Dataset",
    "DatasetStatus",
    "Mixture",
    "PseudoLabels",
    "Split",
    "Unlabelled",
    "data_directory",
    "derive_seed",
    "epoch_batches",
    "fetch",
    "from_tensors",
    "listing",
    "load",
    "load_extra",
    "load_pseudo_labelled",
    "load_unlabelled",
    "names",
    "steps_per_epoch",
    "verify",
]
