"""Stores that this user may not read or write: the error says what, where and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers import is_root

from warmcell.errors import BackendUnavailable, InvalidRequest
from warmcell.images import ImageStore

pytestmark = pytest.mark.skipif(is_root(), reason="root may read and write everything")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("x")
    return tmp_path / "root"


@pytest.fixture
def store(tmp_path: Path, root: Path) -> Iterator[ImageStore]:
    made = ImageStore(tmp_path / "cache/store")
    made.import_(root, "a:1")
    yield made
    for path in (made.path, *(f"{made.path}/{name}" for name in ("names", "images", "blobs", "layers"))):
        Path(path).chmod(0o700)


def add(store: ImageStore, root: Path) -> object:
    (root / "another").write_text("y")
    return store.import_(root, "b:1")


CALLS: dict[str, Callable[[ImageStore, Path], object]] = {
    "list": lambda store, _: store.list(),
    "get": lambda store, _: store.get("a:1"),
    "tag": lambda store, _: store.tag("a:1", "c:1"),
    "remove": lambda store, _: store.remove("a:1"),
    "add": add,
}
CASES = [
    *((place, 0o500, call) for place, call in (("names", "tag"), ("names", "remove"), ("names", "add"))),
    *((place, 0o500, "add") for place in ("blobs", "images", "layers")),
    *(("", 0, call) for call in CALLS),
    *(("names", 0, call) for call in ("list", "get", "tag", "remove")),
    *(("images", 0, call) for call in ("list", "get", "tag", "remove")),
]


@pytest.mark.parametrize(("place", "mode", "call"), CASES)
def test_a_refusal_names_the_store_and_the_remedy(
    store: ImageStore, root: Path, place: str, mode: int, call: str
) -> None:
    Path(store.path, place).chmod(mode)
    with pytest.raises(BackendUnavailable, match="permission denied") as refused:
        CALLS[call](store, root)
    assert store.path in refused.value.message and "--store DIR" in str(refused.value.hint)


def test_a_directory_where_no_store_can_be_made(tmp_path: Path, root: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o500)
    with pytest.raises(BackendUnavailable, match="cannot use the image store"):
        ImageStore(closed / "store").import_(root, "a:1")


def test_a_source_that_cannot_be_read_is_the_callers(store: ImageStore, tmp_path: Path) -> None:
    source = tmp_path / "root.tar"
    source.write_bytes(b"x")
    source.chmod(0)
    with pytest.raises(InvalidRequest, match="cannot read"):
        store.import_(source, "x:1")


def test_the_command_has_a_message_and_no_traceback(store: ImageStore, root: Path) -> None:
    Path(store.path, "names").chmod(0)
    command = [sys.executable, "-m", "warmcell", "image", "list", "--store", store.path]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 125 and ended.stderr.startswith(f"error: cannot use the image store {store.path}")
    assert "hint: give the directory to user" in ended.stderr and "Traceback" not in ended.stderr
