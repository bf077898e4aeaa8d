"""Read compressed files in memory, up to a size; nothing is ever extracted to a path that an archive names."""

import gzip
import io
import tarfile
import zlib

from excite.data.sources.description import ReadFile
from excite.errors import CorruptFileError

LARGEST = 2**30  # bytes, decompressed: several times the largest known file


def decompress(contents: bytes, name: str) -> bytes:
    """What a gzipped file called `name` holds."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(contents)) as file:
            decompressed = file.read(LARGEST + 1)
    except (zlib.error, EOFError, OSError) as error:
        raise CorruptFileError(f"{name} is damaged ({error})") from error
    if len(decompressed) > LARGEST:
        raise CorruptFileError(f"{name} was refused: it would grow to more than {LARGEST:,} bytes")
    return decompressed


def tar_reader(archive: bytes, name: str) -> ReadFile:
    """A function from the name of a regular file in the archive called `name` to its contents."""
    try:
        tar = tarfile.open(fileobj=io.BytesIO(decompress(archive, name)), mode="r:")  # noqa: SIM115  it is in memory
        members = {member.name: member for member in tar if member.isreg()}
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise CorruptFileError(f"{name} is damaged ({error})") from error

    def read(member: str) -> bytes:
        file = tar.extractfile(members[member]) if member in members else None
        if file is None:
            raise CorruptFileError(f"{name} lacks {member}")
        return file.read()

    return read
