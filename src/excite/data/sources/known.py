"""Every data set by its name: load it, fetch it, verify it, list them all."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from excite.data.dataset import Dataset, Split
from excite.data.self_training.hidden_labels import HIDDEN_LABELS, hide_labels
from excite.data.sources.cifar import CIFAR10, CIFAR100
from excite.data.sources.description import Description
from excite.data.sources.mnist import FASHION_MNIST, MNIST
from excite.data.sources.npz import load_npz
from excite.data.sources.obtain import obtain
from excite.data.sources.store import data_directory, read_stored, stored_file
from excite.errors import CorruptFileError, InputError, unknown

DATASETS: dict[str, Description] = {
    description.name: description for description in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)
}

SAMPLE = "mnist-sample"
SAMPLE_FILE = Path(__file__).parent / "assets" / "mnist-sample.npz"
SAMPLE_FINGERPRINT = "9bbd8265bdd891150ce2ff2362aa2700c69e2452c337baf3d1f28bb44fb8f01e"

_PSEUDO_LABELLED = "tiny-images-500k"


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set is on this machine, and how many bytes it takes."""

    name: str
    about: str
    path: Path
    size: int | None

    @property
    def present(self) -> bool:
        return self.size is not None

    def __str__(self) -> str:
        state = "not here yet" if self.size is None else f"{self.size / 1e6:.1f} MB"
        return f"{self.name:<18} {state:>12}  {self.about}"


def names() -> list[str]:
    """The names `load` knows."""
    return [SAMPLE, *DATASETS, *HIDDEN_LABELS]


def load(name: str | Path, *, data_dir: str | Path | None = None, download: bool = True) -> Dataset:
    """A data set by name, or a user's own from the path of an .npz file; where labels are hidden, what is left of it.

    A complete data set that is not in the data directory is fetched first; with `download=False` only from official
    files that are already there.
    """
    if isinstance(name, Path) or name.endswith(".npz"):
        return load_npz(Path(name).expanduser())
    if name == SAMPLE:
        return load_npz(SAMPLE_FILE, name=SAMPLE)
    if name in HIDDEN_LABELS:
        whole = load(HIDDEN_LABELS[name].source, data_dir=data_dir, download=download)
        labelled, _ = hide_labels(whole.train, HIDDEN_LABELS[name].labelled)
        return replace(whole, name=name, train=labelled)
    description = _find(name)
    directory = data_directory(data_dir)
    path = stored_file(directory, name)
    if not path.exists():
        obtain(description, directory, download=download)
    return read_stored(path, description)


def hidden_part(name: str) -> Split:
    """The training images that a data set of `HIDDEN_LABELS` lacks, with the labels that it hides."""
    _, hidden = hide_labels(load(HIDDEN_LABELS[name].source).train, HIDDEN_LABELS[name].labelled)
    return hidden


def from_tensors(
    train_images: Tensor,
    train_labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    *,
    name: str = "own",
    num_classes: int | None = None,
) -> Dataset:
    """A user's own tensors: uint8 images N×C×H×W, int64 labels from 0; `num_classes` is counted if not given."""
    train, test = Split(train_images, train_labels), Split(test_images, test_labels)
    if num_classes is None:
        num_classes = 1 + max(int(train_labels.max()), int(test_labels.max()))
    return Dataset(name, train, test, num_classes)


def fetch(name: str, data_dir: str | Path | None = None) -> Path:
    """Make sure that the data set is in the data directory, whole; its file."""
    name = _stored_name(name)
    if name == SAMPLE:
        return SAMPLE_FILE
    return obtain(_find(name), data_directory(data_dir))


def verify(name: str, data_dir: str | Path | None = None) -> str:
    """The fingerprint of the data set in the data directory; an error if it is missing or not the published one."""
    name = _stored_name(name)
    if name == SAMPLE:
        fingerprint = load(SAMPLE).fingerprint()
        if fingerprint != SAMPLE_FINGERPRINT:
            raise CorruptFileError(f"{SAMPLE_FILE} has been changed. Install excite again.")
        return fingerprint
    description = _find(name)
    path = stored_file(data_directory(data_dir), name)
    if not path.exists():
        raise InputError(f"{name} is not in {path.parent}. Run `excite data fetch {name}`.")
    return read_stored(path, description).fingerprint()


def listing(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """Every named data set and whether it is here."""
    directory = data_directory(data_dir)
    sample_about = "handwritten digits, grey, 5,000 train and 1,000 test images, part of excite"
    rows = [(SAMPLE, sample_about, SAMPLE_FILE)]
    rows += [(name, str(description), stored_file(directory, name)) for name, description in DATASETS.items()]
    files = {name: path for name, _, path in rows}
    rows += [(name, str(hidden), files[hidden.source]) for name, hidden in HIDDEN_LABELS.items()]
    return [
        DatasetStatus(name, about, path, path.stat().st_size if path.exists() else None) for name, about, path in rows
    ]


def _stored_name(name: str) -> str:
    return HIDDEN_LABELS[name].source if name in HIDDEN_LABELS else name


def _find(name: str) -> Description:
    if name in DATASETS:
        return DATASETS[name]
    if name == _PSEUDO_LABELLED:
        raise InputError(
            f"{name} is a file of yours without a test split. Set data.unlabelled of an experiment to its path, or "
            "read it with excite.data.load_pseudo_labelled(path)."
        )
    raise unknown("data set", name, [*names(), "the path of an .npz file"])
