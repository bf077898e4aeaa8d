"""RST's file of 500,000 pseudo-labelled tiny images: where it is published, and where it lies on this machine.

Its authors publish no hash, so it is checked by what it holds.
"""

from pathlib import Path

from excite.data.image_files import load_pseudo_labelled
from excite.data.sources import download, scratch_folder
from excite.errors import CorruptFileError, DataUnavailableError
from excite.files import locked

RST_FILE = "ti_500K_pseudo_labeled.pickle"
N_IMAGES = 500_000
_IDENTIFIER = "1LTw3Sb5QoiCCN-6Y5PEKkq9C9W60w-Hi"
ADDRESS = f"https://drive.google.com/open?id={_IDENTIFIER}"  # as in the README of github.com/yaircarmon/semisup-adv
_DIRECT = f"https://drive.usercontent.google.com/download?id={_IDENTIFIER}&export=download&confirm=t"


def cure(directory: Path) -> str:
    return (
        f"`excite data fetch {RST_FILE}` downloads it (about 1.5 GB). Or download it from {ADDRESS} yourself, and put "
        f"it into {directory}, or where you give the command."
    )


def fetch_tiny_images(directory: Path, address: str = _DIRECT) -> Path:
    """Download the file into the data directory unless it is there, and check it; return its path."""
    path = directory / RST_FILE
    with locked(path):
        if path.exists():
            _check(path)
            return path
        try:
            with scratch_folder(directory, RST_FILE) as scratch:
                file = download(address, scratch / RST_FILE, None)
                _check(file)
                file.replace(path)
        except (OSError, ValueError, CorruptFileError) as error:  # an InputError is a ValueError
            raise DataUnavailableError(f"{RST_FILE} cannot be downloaded ({error}). {cure(directory)}") from error
    return path


def _check(path: Path) -> None:
    split = load_pseudo_labelled(path)
    if tuple(split.images.shape) != (N_IMAGES, 3, 32, 32) or split.largest_label > 9:
        raise CorruptFileError(f"{path} holds {split}; RST's file has {N_IMAGES:,} of 3×32×32. Fetch it again.")
