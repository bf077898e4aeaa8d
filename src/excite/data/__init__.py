"""Images as tensors in memory: `load` a data set by name and iterate over its `epoch_batches`."""

from excite.data.augment import AUGMENTATIONS, Augmentation
from excite.data.batches import Mixture, TrainingData, epoch_batches, steps_per_epoch
from excite.data.catalog import (
    DATASETS,
    DatasetStatus,
    data_directory,
    fetch,
    find,
    listing,
    load,
    names,
    register,
    verify,
)
from excite.data.dataset import Dataset, Split, from_tensors
from excite.data.own_files import from_folder, from_hugging_face
from excite.data.pseudo_labels import PseudoLabels, Unlabelled, load_extra, load_unlabelled
from excite.data.tiny_images import load_pseudo_labelled
from excite.randomness import derive_seed

__all__ = ["AUGMENTATIONS", "DATASETS", "Augmentation", "Dataset", "DatasetStatus", "Mixture", "PseudoLabels", "Split"]
__all__ += ["TrainingData", "Unlabelled", "data_directory", "derive_seed", "epoch_batches", "fetch", "find"]
__all__ += ["from_folder", "from_hugging_face", "from_tensors", "listing", "load", "load_extra"]
__all__ += ["load_pseudo_labelled", "load_unlabelled", "names", "register", "steps_per_epoch", "verify"]
