"""Get a data set from the first place that has it, whole and once, however many processes ask at the same time."""

import contextlib
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from excite.data.sources.description import Description, Source
from excite.data.sources.places import Addresses, Folder
from excite.data.sources.store import ENVIRONMENT_VARIABLE, read_stored, stored_file, write_stored
from excite.errors import CorruptFileError, DataUnavailableError, InputError

_logger = logging.getLogger(__name__)

# What a place without the data, a cut connection or a damaged file raises.
_FAILURES = (OSError, ValueError, CorruptFileError, subprocess.SubprocessError)


def obtain(description: Description, directory: Path, *, download: bool = True) -> Path:
    """The data set's decoded file in `directory`, made from the first source that gives the right data.

    A good file that is already there is kept, a damaged one replaced. A download that fails or turns out wrong
    leaves nothing behind; files that the user put there are never touched.
    """
    path = stored_file(directory, description.name)
    failures = []
    with _turn(directory, description.name):
        if path.exists():
            try:
                read_stored(path, description)
                return path
            except CorruptFileError as error:
                _logger.warning("%s", error)
        for source in _sources(description, directory, download=download):
            _logger.info("%s: trying %s", description.name, source)
            try:
                with _scratch_folder(directory, description.name) as scratch:
                    dataset = description.check(source.splits(scratch))
            except _FAILURES as error:
                failures.append(f"{source}: {_one_line(error)}")
                _logger.info("%s: no luck with %s", description.name, failures[-1])
            else:
                write_stored(path, dataset)
                return path
    raise DataUnavailableError(_cure(description, directory, failures))


def _sources(description: Description, directory: Path, *, download: bool) -> Iterator[Source]:
    folder = directory / description.name
    md5_checked = () if description.fingerprint else description.files
    yield Folder(f"your files in {folder}", folder, description.decode, md5_checked)
    if download:
        yield Addresses(description.files, description.decode)
        if description.fallback is not None:
            yield description.fallback


@contextlib.contextmanager
def _turn(directory: Path, name: str) -> Iterator[None]:
    """One process at a time; the others wait here and then find the file."""
    from filelock import FileLock

    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / f".{name}.lock")
        lock.acquire()
    except OSError as error:
        raise InputError(
            f"The data directory {directory} cannot be written to ({error}). "
            f"Choose another with the environment variable {ENVIRONMENT_VARIABLE}."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _scratch_folder(directory: Path, name: str) -> Iterator[Path]:
    """An empty folder, gone afterwards; one that a killed process left is emptied first. Needs the turn."""
    folder = directory / f".{name}.scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def _cure(description: Description, directory: Path, failures: list[str]) -> str:
    tried = [f"  {failure}" for failure in failures]
    wanted = [f"  {file.name}   from {file.address}" for file in description.files]
    return "\n".join(
        [
            f"{description.name} could not be had. Tried:",
            *tried,
            f"Put these files into {directory / description.name} and run the same command again:",
            *wanted,
        ]
    )
