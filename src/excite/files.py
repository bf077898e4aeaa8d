"""Write files atomically, store JSON with a hash that reveals edits, and let one process at a time make a file."""

import contextlib
import glob
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout

from excite.errors import CorruptFileError, ExciteError

T = TypeVar("T")

FORMAT = 1  # version of every JSON file in a run folder, see docs/run-folder.md
_RESTORE = "Restore the original file, or delete it: `excite run` then does that stage again."


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success, flush it to disk and rename it to `path`.

    Readers see the old contents or the new contents, never a part of them.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    lock = _part_lock(temporary)  # held while this process writes, so that no other process clears the file away
    try:
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            clear_away(path.parent.glob(f".{glob.escape(path.name)}.*.part*"))
            lock.acquire()
            temporary.touch()
            yield temporary
            _fsync(temporary, os.O_RDWR)
            temporary.replace(path)
            if os.name != "nt":  # Windows cannot open a folder
                _fsync(path.parent, os.O_RDONLY)
    finally:
        _remove(temporary, lock)


def clear_away(parts: Iterable[Path]) -> None:
    """Remove temporary files whose writers were killed; `parts` are `.*.part` files and their locks."""
    for temporary in {part.with_name(part.name.removesuffix(".lock")) for part in parts}:
        lock = _part_lock(temporary)
        with contextlib.suppress(Timeout, OSError):
            lock.acquire(timeout=0)
            _remove(temporary, lock)


def _part_lock(temporary: Path) -> FileLock:
    return FileLock(temporary.with_name(f"{temporary.name}.lock"))


def _remove(temporary: Path, lock: FileLock) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
    lock.release()
    with contextlib.suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into an error that says what happened to `path` and how to continue."""
    try:
        yield
    except OSError as error:
        raise ExciteError(
            f"Cannot write {path} ({error.strerror or error}). Nothing stored before is lost. Free some space, "
            "or make sure that the disk is writable, and run the same command again; it continues from there."
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object with the version of the format and a hash that `read_json` checks."""
    write_text(path, json.dumps(sealed(value), indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read an object that `write_json` wrote; raise CorruptFileError if the file has been changed."""
    return unsealed(parse_json(path), f"{path}")


def read_as(path: Path, kind: type[T]) -> T:
    """Read an object that `write_json` wrote as an instance of the dataclass `kind`; check every field."""
    with expected(path):
        return msgspec.convert(read_json(path), kind)


def parse_json(path: Path) -> Any:
    return _parsed(path.read_bytes(), path)


def parse_lines(path: Path) -> list[Any]:
    lines = path.read_bytes().split(b"\n")  # splitlines would also split inside a damaged one
    return [_parsed(line, path) for line in lines if line]


def _parsed(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are a ValueError too
        raise CorruptFileError(f"{path} is not valid JSON ({error}). {_RESTORE}") from error


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one sealed object to a file of JSON lines and flush it to disk."""
    with _write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(sealed(value)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read every sealed object of a file of JSON lines."""
    return [unsealed(value, f"Line {number} of {path}") for number, value in enumerate(parse_lines(path), start=1)]


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Add the format version and, last, the SHA-256 of the canonical form."""
    content = {"format": FORMAT, **value}
    return {**content, "sha256": canonical_sha256(content)}


def unsealed(value: Any, what: str) -> dict[str, Any]:
    """Remove the format version and the hash after checking them; `what` names the object in errors."""
    if not isinstance(value, dict):
        raise CorruptFileError(f"{what} is not a JSON object. {_RESTORE}")
    content = {key: entry for key, entry in value.items() if key != "sha256"}
    if "sha256" not in value or "format" not in value:
        raise CorruptFileError(
            f"{what} has no format version and hash: it was written by hand or by an older excite. {_RESTORE}"
        )
    if value["format"] != FORMAT:
        raise CorruptFileError(f"{what} has format {value['format']!r}; use a version of excite that reads it.")
    if value["sha256"] != canonical_sha256(content):
        raise CorruptFileError(f"{what} was changed after it was written: it does not match its hash. {_RESTORE}")
    del content["format"]
    return content


def canonical_sha256(value: Any) -> str:
    """Hash a JSON value with sorted keys, no white space, and 1.0 written as 1: reformatting keeps the hash.

    >>> canonical_sha256({"b": 1.0, "a": []}) == hashlib.sha256(b'{"a":[],"b":1}').hexdigest()
    True
    """
    plain = _plain(json.loads(json.dumps(value)))  # numeric keys become text, as in a file
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@contextlib.contextmanager
def expected(what: object) -> Iterator[None]:
    """Turn errors in building an object from a file's contents into a CorruptFileError that names the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, msgspec.ValidationError) as error:
        if isinstance(error, ExciteError):
            raise
        problem = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptFileError(f"{what} has unexpected contents: {problem}. {_RESTORE}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _fsync(path: Path, mode: int) -> None:
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def once(file: Path, make: Callable[[], object], *, say: Callable[[str], None] = lambda _: None) -> None:
    """Call `make`, which writes `file`, unless the file exists.

    If several processes need the file, one makes it and the others wait. The operating system frees the lock of a
    process that dies.
    """
    if file.exists():
        return
    with locked(file, say=say):
        if not file.exists():
            make()


@contextlib.contextmanager
def locked(file: Path, *, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock of `file` while the block runs; tell the user through `say` if another process holds it."""
    lock = _lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{file}: waiting for another process that is writing it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def being_made(file: Path) -> bool:
    """Return whether another process is making the file now."""
    if file.exists() or not file.parent.exists():
        return False
    try:
        with _lock(file).acquire(timeout=0):
            return False
    except Timeout:
        return True


def _lock(file: Path) -> FileLock:
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file.with_name(f".{file.name}.lock"))
