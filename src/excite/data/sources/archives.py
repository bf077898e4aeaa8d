"""Read the files of a .tar.gz archive in memory; nothing is ever extracted to a path the archive names."""

import gzip
import io
import tarfile
import zlib

from excite.data.sources.description import ReadFile
from excite.errors import CorruptFileError


def tar_reader(archive: bytes, name: str) -> ReadFile:
    """A function from the name of a regular file in the archive called `name` to its contents."""
    try:
        tar = tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive)), mode="r:")  # noqa: SIM115  it is in memory
        members = {member.name: member for member in tar if member.isreg()}
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise CorruptFileError(f"{name} is damaged ({error})") from error

    def read(member: str) -> bytes:
        file = tar.extractfile(members[member]) if member in members else None
        if file is None:
            raise CorruptFileError(f"{name} lacks {member}")
        return file.read()

    return read
