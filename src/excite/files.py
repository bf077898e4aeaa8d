"""Write a file so that a reader sees the old contents or the new, never a part; JSON so that edits show; each once."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock, Timeout

from excite.errors import CorruptFileError, ExciteError

T = TypeVar("T")

FORMAT = 1  # of every JSON file of a run folder: docs/run-folder.md
_AGAIN = "Put the original file back, or delete it to do that stage again."
_ACCEPT = (
    "Put the original file back, or delete it to do that stage again; if you changed it on purpose: "
    "excite verify FOLDER --accept."
)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success fsync it, rename it to `path`, fsync the folder."""
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_away(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
        temporary, held = _held_temporary(path)
    try:
        with _told(path):
            yield temporary
            _fsync(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        with _told(path, "The new file is in place, but may be lost if the machine stops now"):
            _fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(held)


def clear_away(parts: Iterable[Path]) -> None:
    """Remove temporary files that nobody holds any more: their writers were killed."""
    for part in parts:
        with contextlib.suppress(OSError), part.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _held_temporary(path: Path) -> tuple[Path, int]:
    """A new file beside `path`, and the descriptor whose lock tells others that its writer lives."""
    while True:
        held, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        fcntl.flock(held, fcntl.LOCK_EX)
        if Path(name).exists():
            return Path(name), held
        os.close(held)  # cleared away before it was held


@contextlib.contextmanager
def _told(path: Path, state: str = "What was there before is untouched") -> Iterator[None]:
    """Say what the operating system would not do, what that means for `path`, and how to go on."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        problem = "No room left to write" if full else "Cannot write"
        cure = "free some space" if full else "see that the disk can be written"
        raise ExciteError(
            f"{problem} {path} ({error.strerror or error}). {state}: {cure} and run the same command again, it goes on "
            "from there."
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object, sealed: with the format's version and a hash that `read_json` checks."""
    write_text(path, json.dumps(sealed(value), indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object that `write_json` wrote, without its seal; refused where that is not what is in the file."""
    return unsealed(parse_json(path), f"{path}")


def read_as(path: Path, kind: type[T]) -> T:
    """The object that `write_json` wrote, as a dataclass of this kind, each of its fields checked."""
    try:
        return msgspec.convert(read_json(path), kind)
    except msgspec.ValidationError as error:
        raise CorruptFileError(f"{path} does not hold what it should: {error}. {_AGAIN}") from error


def parse_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # a ValueError also where it is no UTF-8
        raise CorruptFileError(f"{path} is not valid JSON ({error}). {_AGAIN}") from error


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Add one sealed object to a file of JSON lines, and wait until it is on the disk."""
    with _told(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(sealed(value)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every object of a file of JSON lines, each checked."""
    return [unsealed(value, f"Line {number} of {path}") for number, value in enumerate(parse_lines(path), start=1)]


def parse_lines(path: Path) -> list[Any]:
    lines = path.read_bytes().split(b"\n")  # splitlines would also split inside a damaged one
    try:
        return [json.loads(line) for line in lines if line]
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} holds a line that is not valid JSON ({error}). {_AGAIN}") from error


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its format and, last, the SHA-256 of its canonical form."""
    content = {"format": FORMAT, **value}
    return {**content, "sha256": canonical_sha256(content)}


def unsealed(value: Any, what: str) -> dict[str, Any]:
    """The object without its seal; `what` names it in the error for one that has none, or one that does not fit."""
    if not isinstance(value, dict):
        raise CorruptFileError(f"{what} holds no JSON object. {_AGAIN}")
    content = {key: entry for key, entry in value.items() if key != "sha256"}
    if "sha256" not in value or "format" not in value:
        raise CorruptFileError(
            f"{what} carries no format and hash: it was written by hand or by an older excite. {_ACCEPT}"
        )
    if value["format"] != FORMAT:
        raise CorruptFileError(
            f"{what} has format {value['format']!r}; this excite reads {FORMAT}. Use the excite that wrote it, or a "
            "newer one."
        )
    if value["sha256"] != canonical_sha256(content):
        raise CorruptFileError(f"{what} is not as it was written: its contents do not match their hash. {_ACCEPT}")
    del content["format"]
    return content


def canonical_sha256(value: Any) -> str:
    """Of a JSON value with sorted keys and no white space, whole numbers without a point: prettier files hash alike.

    >>> canonical_sha256({"b": 1.0, "a": []}) == hashlib.sha256(b'{"a":[],"b":1}').hexdigest()
    True
    """
    plain = _plain(json.loads(json.dumps(value)))  # keys that are numbers become what a file has
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@contextlib.contextmanager
def expected(what: object) -> Iterator[None]:
    """Turn what goes wrong while an object is made from a file's contents into an error that names the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, ExciteError):
            raise
        problem = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptFileError(f"{what} does not hold what it should: {problem}. {_AGAIN}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def once(file: Path, make: Callable[[], object], *, say: Callable[[str], None] = lambda _: None) -> None:
    """Call `make`, which leaves `file` behind, unless the file is there.

    Of several processes that want the file one makes it and the others wait. The lock is the operating system's: that
    of a process that died is free.
    """
    if file.exists():
        return
    with turn(file, say=say):
        if not file.exists():
            make()


@contextlib.contextmanager
def turn(file: Path, *, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """While the block runs, no other process has its turn at `file`; say so where that means waiting."""
    lock = _lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{file}: another process is at it; waiting.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def being_made(file: Path) -> bool:
    """Whether some process is at it now."""
    if file.exists() or not file.parent.exists():
        return False
    lock = _lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def _lock(file: Path) -> FileLock:
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file.with_name(f".{file.name}.lock"))
