"""Layers on top of each other: as overlayfs shows them, and merged where the store cannot have whiteouts."""

from __future__ import annotations

import errno
import os
import subprocess
import tarfile
from pathlib import Path
from typing import NoReturn

import pytest
from tests.images.image_files import Layout, directory, entry, hardlink, layer, symlink

from warmcell.images import ImageStore, unpack

LAYERS = [
    layer(
        directory("etc"), entry("etc/kept", b"1"), entry("etc/gone", b"2"), entry("etc/changed", b"3"),
        directory("opaque"), entry("opaque/old"), directory("opaque/deep"), entry("opaque/deep/old"),
        directory("tree/inner"), entry("tree/inner/x"), symlink("link", "etc"), entry("twin", b"t"), hardlink("twin2", "twin"),
        directory("becomes-file"), entry("becomes-file/x"), entry("becomes-directory", b"f"), directory("again"), entry("again/old"),
    ),
    layer(
        entry("etc/.wh.gone"), entry("etc/changed", b"new"), entry("opaque/new"), entry("opaque/.wh..wh..opq"),
        entry(".wh.tree"), entry(".wh.link"), entry("twin", b"other"), entry("becomes-file", b"f"),
        directory("becomes-directory"), entry("becomes-directory/x"), entry(".wh.again"), directory("again"), entry("again/new"),
        entry(".wh.never-there"),
    ),
    layer(entry("etc/gone", b"back"), entry("tree/fresh"), entry("opaque/deep/new"), entry(".wh.becomes-directory")),
]  # fmt: skip
EXPECTED = {
    "etc/kept": b"1", "etc/gone": b"back", "etc/changed": b"new", "opaque/new": b"", "opaque/deep/new": b"",
    "tree/fresh": b"", "twin": b"other", "twin2": b"t", "becomes-file": b"f", "again/new": b"",
}  # fmt: skip


def files(tree: str) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in Path(tree).rglob("*") if path.is_file()}


EMPTY = layer()


@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("layers", [LAYERS, [EMPTY, LAYERS[0], EMPTY, LAYERS[1], EMPTY, *LAYERS[1:], EMPTY]])
def test_overlayfs_shows_the_layers_as_meant(store: ImageStore, tmp_path: Path, layers: list[bytes]) -> None:
    """Docker's images have the same empty layer for every instruction that changes no file."""
    image = store.import_(Layout(layers).write(tmp_path / "l"), "x")
    (tmp_path / "root").mkdir()
    os.symlink(f"{store.path}/layers", tmp_path / "s")
    lower = ":".join(f"s/{os.path.relpath(path, f'{store.path}/layers')}" for path in reversed(image.layer_paths))
    script = f"mount -t overlay overlay -o lowerdir={lower},userxattr root && cp -r root copy"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert files(str(tmp_path / "copy")) == EXPECTED


@pytest.mark.parametrize("call", ["mknod", "setxattr"])
def test_layers_are_merged_where_whiteouts_cannot_be_made(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """overlayfs itself refuses them, which is what most containers have."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EPERM if call == "mknod" else errno.ENOTSUP, "refused")

    path = Layout(LAYERS, compress=True).write(tmp_path / "l")
    monkeypatch.setattr(unpack.os, call, refuse)
    image = store.import_(path, "x")
    [tree] = image.layer_paths
    assert files(tree) == EXPECTED and not os.path.lexists(f"{tree}/link")
    assert store.import_(path, "y").layer_paths == image.layer_paths
    store.prune()
    assert files(tree) == EXPECTED
    store.export("x", tmp_path / "out.tar", format="docker")
    monkeypatch.undo()
    assert len(ImageStore(tmp_path / "other").import_(tmp_path / "out.tar", "x").layer_paths) == 3
    store.remove("x")
    store.remove("y")
    assert os.listdir(f"{store.path}/layers") == []


def test_merging_takes_time_for_each_directory_once(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories of a layer are nested deeply, and its whiteouts as many as its files."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EPERM, "refused")

    deep = "/".join("d" * 470)
    own = [entry(f"own/{number}") for number in range(300)]
    upper = layer(
        entry(f"{deep}/new"), *own, *([entry(".wh..wh..opq"), entry(".wh.d"), entry("own/.wh..wh..opq")] * 100)
    )
    lower = layer(entry("d/d/old"), entry("own/old"), entry("old"))
    listed: list[object] = []
    list_directory = os.listdir

    def count(path: object = ".") -> list[str]:
        listed.append(path)
        return list_directory(path)  # type: ignore[call-overload]

    path = Layout([lower, upper]).write(tmp_path / "l")
    monkeypatch.setattr(unpack.os, "mknod", refuse)
    monkeypatch.setattr(unpack.os, "setxattr", refuse)
    monkeypatch.setattr("warmcell.images.layers.os.listdir", count)
    [tree] = store.import_(path, "x").layer_paths
    monkeypatch.undo()
    assert len(listed) < 600
    assert sorted(os.listdir(tree)) == ["d", "own"] and len(os.listdir(f"{tree}/own")) == 300
    assert os.listdir(f"{tree}/d/d") == ["d"]
    store.remove("x")
    assert os.listdir(f"{store.path}/layers") == []


def test_merged_layers_have_the_owners_of_the_topmost(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EPERM, "refused")

    lower = layer(
        entry("tool", b"1", mode=0o4755, uid=7),
        entry("kept", b"2", uid=8),
        entry("made", kind=tarfile.DIRTYPE, mode=0o700, uid=9),
    )
    upper = layer(entry("tool", b"3", mode=0o755), entry(".wh.made"), entry("made/new", b"4"))
    monkeypatch.setattr(unpack.os, "mknod", refuse)
    image = store.import_(Layout([lower, upper]).write(tmp_path / "l"), "x")
    assert store.owners(image) == ({"kept": (8, 0, 0o644)},)
