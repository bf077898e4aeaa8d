"""Real images as tensors in memory: `load` a data set by name, walk through its `epoch_batches`."""

from excite.data.augment import AUGMENTATIONS, Augmentation
from excite.data.batches import epoch_batches, steps_per_epoch
from excite.data.catalogue import DatasetStatus, fetch, from_tensors, listing, load, names, verify
from excite.data.dataset import Dataset, Split
from excite.data.pseudo_labelled import load_pseudo_labelled
from excite.data.seeds import derive_seed
from excite.data.store import data_directory

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Dataset",
    "DatasetStatus",
    "Split",
    "data_directory",
    "derive_seed",
    "epoch_batches",
    "fetch",
    "from_tensors",
    "listing",
    "load",
    "load_pseudo_labelled",
    "names",
    "steps_per_epoch",
    "verify",
]
