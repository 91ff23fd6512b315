"""Files below `--state` with a key: encrypted, bound to their place, and never lost half-way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.interfaces.serve.saved_state import SavedState
from warmcell.interfaces.serve.state_homes import EncryptedHome, StateHome
from warmcell.workspace.files import write_all
from warmcell.workspace.root import Root
from warmcell.workspaces.snapshots import chunks

pytest.importorskip("cryptography")
KEY = "1a" * 32
pytestmark = pytest.mark.needs("linux")


@pytest.fixture
def state(tmp_path: Path) -> SavedState:
    return SavedState(str(tmp_path / "state"), 0, KEY)


def make_home(state: SavedState, word: str) -> StateHome:
    home = state.make_home()
    Path(home.path, "file").write_text(word)
    Path(home.path, f"name-{word}").symlink_to(f"target-{word}")
    home.save()
    return home


def load(state: SavedState, home: StateHome) -> str:
    find = state.find_home(home.name, home.version)
    assert find is not None
    again = find()
    try:
        return Path(again.path, "file").read_text()
    finally:
        again.close()


def sealed_at(state: SavedState, home: StateHome) -> Path:
    return Path(state.path, "homes", home.name)


def contains(place: Path, word: bytes) -> bool:
    """In a name, or in a byte of a file."""
    found = list(place.rglob("*"))
    return any(word in os.fsencode(path) or (path.is_file() and word in path.read_bytes()) for path in found)


@pytest.mark.claim("WC-ST-1")
def test_nothing_of_the_files_is_readable(state: SavedState, tmp_path: Path) -> None:
    home = make_home(state, "canary")
    copy = state.keep_copy(home.path)
    packages = state.keep_packages(home.path)
    assert packages is not None and not home.path.startswith(state.path)
    assert not contains(Path(state.path), b"canary")
    assert load(state, home) == "canary"
    target = tmp_path / "target"
    target.mkdir()
    with Root(target) as root:
        copy.copy_to(root)
    assert (target / "file").read_text() == "canary" and (target / "name-canary").is_symlink()
    loaded = state.load_packages(packages)
    assert Path(loaded.path, "file").read_text() == "canary"
    for found in (loaded, copy, home):
        found.close()
    assert not os.path.exists(loaded.path) and not os.path.exists(home.path)
    assert os.listdir(os.path.join(state.path, "homes")) == []
    state.close()


def exchange(first: Path, second: Path) -> None:
    first.rename(first.with_suffix(".other"))
    second.rename(first)
    first.with_suffix(".other").rename(second)


@pytest.mark.claim("WC-ST-1")
def test_files_of_another_sandbox_are_refused(state: SavedState) -> None:
    one, two = make_home(state, "one"), make_home(state, "two")
    exchange(sealed_at(state, one), sealed_at(state, two))
    versions = one.version, two.version
    two.version, one.version = versions  # the records were exchanged too
    for home in (one, two):
        with pytest.raises(SandboxError, match="decrypted"):
            load(state, home)
    exchange(sealed_at(state, one), sealed_at(state, two))
    one.version, two.version = versions
    assert load(state, one) == "one"
    other = SavedState(str(Path(state.path).parent), 1, KEY)
    sealed_at(state, one).rename(sealed_at(other, one))
    with pytest.raises(SandboxError, match="decrypted"):
        load(other, one)  # the same name in the directory of another worker
    other.close()
    state.close()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("packs", flip),
    ("packs", lambda path: path.write_bytes(path.read_bytes()[:20])),
    ("packs", os.unlink),
    ("snapshots", flip),
    ("snapshots", lambda path: path.write_bytes(b"")),
    ("snapshots", os.unlink),
]


@pytest.mark.claim("WC-ST-1")
@pytest.mark.parametrize(("kind", "damage"), DAMAGE)
def test_damage_is_noticed(state: SavedState, kind: str, damage: Callable[[Path], object]) -> None:
    home, fine = make_home(state, "one"), make_home(state, "two")
    (found,) = (sealed_at(state, home) / kind).iterdir()
    damage(found)
    if kind == "snapshots":
        (sealed_at(state, home) / "catalogue.db").unlink()  # it has a copy, which is authenticated too
    with pytest.raises(SandboxError):
        load(state, home)
    assert load(state, fine) == "two" and sealed_at(state, home).is_dir()
    state.close()


def test_a_full_disk_loses_nothing(state: SavedState, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_home(state, "one")
    former, before = home.version, sorted(sealed_at(state, home).rglob("*"))
    Path(home.path, "large").write_bytes(os.urandom(3 << 20))

    def fail(descriptor: int, data: bytes) -> None:
        write_all(descriptor, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(chunks, "write_all", fail)
        for save in (home.save, lambda: state.keep_copy(home.path)):
            with pytest.raises(ExecutionFailed, match="write to the store: No space"):
                save()
    assert home.version == former and sorted(sealed_at(state, home).rglob("*")) == before
    assert load(state, home) == "one"
    assert os.listdir(os.path.join(state.path, "homes")) == [home.name]
    state.close()


def test_former_versions_stay_until_they_are_dropped(state: SavedState) -> None:
    """A server that is killed after `save` has a record that names the former one."""
    home = make_home(state, "one")
    former = home.version
    Path(home.path, "file").write_bytes(os.urandom(1 << 20))
    home.save()
    latest, home.version = home.version, former
    assert load(state, home) == "one"
    home.drop_previous_versions()  # as the next server does: no record names the other one
    assert load(state, home) == "one"
    assert sum(path.stat().st_size for path in sealed_at(state, home).rglob("*")) < 1 << 20
    home.version = latest
    with pytest.raises(SandboxError, match="no snapshot"):
        load(state, home)
    state.close()


def test_an_unsaved_home_leaves_nothing(state: SavedState) -> None:
    home = state.make_home()
    assert isinstance(home, EncryptedHome) and os.listdir(os.path.join(state.path, "homes")) == []
    home.close()
    assert not os.path.exists(home.path)
    state.close()
