import gzip
import io
import tarfile
from pathlib import Path

import pytest

from excite.data.download import decompress, tar_reader
from excite.errors import CorruptFileError


def archive(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member, contents in members:
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return buffer.getvalue()


def link(name: str, target: Path) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE
    member.linkname = str(target)
    return member


def test_files_are_read_by_name_in_any_order() -> None:
    read = tar_reader(archive([(tarfile.TarInfo("a"), b"1" * 100_000), (tarfile.TarInfo("b/c"), b"")]), "x.tgz")
    assert read("b/c") == b""
    assert read("a") == b"1" * 100_000
    with pytest.raises(CorruptFileError, match=r"x\.tgz .*c"):
        read("c")


def test_nothing_is_written_and_no_link_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    outside = tmp_path / "outside"
    read = tar_reader(archive([(tarfile.TarInfo(str(outside)), b"evil"), (link("link", secret), b"")]), "x.tgz")
    assert list(tmp_path.iterdir()) == [secret]
    with pytest.raises(CorruptFileError, match="link"):
        read("link")


@pytest.mark.parametrize("keep", [0, 10, 300, -20])
def test_a_truncated_archive_is_named(keep: int) -> None:
    noise = bytes((i * i * 31 + i // 7) % 256 for i in range(20_000))
    with pytest.raises(CorruptFileError, match=r"x\.tgz"):
        tar_reader(archive([(tarfile.TarInfo("a"), noise)])[:keep], "x.tgz")


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("excite.data.download.LARGEST", 10_000)
    bomb = gzip.compress(bytes(10_001))
    with pytest.raises(CorruptFileError, match=r"x\.gz .*10,000"):
        decompress(bomb, "x.gz")
    with pytest.raises(CorruptFileError, match="10,000"):
        tar_reader(bomb, "x.tgz")
    assert decompress(gzip.compress(bytes(10_000)), "x.gz") == bytes(10_000)
