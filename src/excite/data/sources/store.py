"""The data directory keeps each data set decoded in one safetensors file, checked by its hash whenever it is read."""

from dataclasses import replace
from pathlib import Path

from excite.data.dataset import Dataset, Split
from excite.data.sources.description import Description
from excite.errors import CorruptFileError
from excite.files import write_bytes

ENVIRONMENT_VARIABLE = "EXCITE_DATA"


def stored_file(directory: Path, name: str) -> Path:
    """Where the decoded data set is, or would be."""
    return directory / f"{name}.safetensors"


def write_stored(path: Path, dataset: Dataset) -> None:
    from safetensors.torch import save

    tensors = {
        "train_images": dataset.train.images.contiguous(),
        "train_labels": dataset.train.labels.contiguous(),
        "test_images": dataset.test.images.contiguous(),
        "test_labels": dataset.test.labels.contiguous(),
    }
    write_bytes(path, save(tensors, metadata={"name": dataset.name, "fingerprint": dataset.fingerprint()}))


def read_stored(path: Path, description: Description) -> Dataset:
    """The data set in `path`, if it is whole and the one described."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            recorded = (file.metadata() or {}).get("fingerprint", "none")
            train = Split(file.get_tensor("train_images"), file.get_tensor("train_labels"))
            test = Split(file.get_tensor("test_images"), file.get_tensor("test_labels"))
        return replace(description, fingerprint=description.fingerprint or recorded).check((train, test))
    except (SafetensorError, ValueError, CorruptFileError) as error:
        raise CorruptFileError(
            f"{path} is damaged: {error}. Run `excite data fetch {description.name}` to replace it, or delete it."
        ) from error
