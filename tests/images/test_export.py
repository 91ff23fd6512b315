"""Exports: the same bytes every time, read back here and by other tools (skopeo, umoci)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require
from tests.images.image_files import CONFIG, LAYER, Layout, directory, entry, hardlink, layer, symlink

from warmcell.errors import ImageNotFound, InvalidRequest
from warmcell.images import Image, ImageStore, export

SETTINGS = {"Env": ["A=b"], "Cmd": ["/bin/sh"], "WorkingDir": "/srv"}


@pytest.fixture
def image(store: ImageStore, tmp_path: Path) -> Image:
    base = layer(
        directory("etc"),
        entry("etc/os-release", b"ID=test\n"),
        entry("etc/gone", b"x"),
        symlink("l", "etc"),
        hardlink("h", "etc/gone"),
    )
    upper = layer(entry("etc/.wh.gone"), entry("new", b"n"))
    return store.import_(Layout([base, upper], SETTINGS, compress=True).write(tmp_path / "source"), "team/app:1")


def run(*command: str | Path) -> str:
    require(shutil.which(str(command[0])), f"{command[0]} is not installed")
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def contents(path: Path) -> dict[str, bytes]:
    return {str(found.relative_to(path)): found.read_bytes() for found in path.rglob("*") if found.is_file()}


def test_a_layout_keeps_the_digest(store: ImageStore, image: Image, tmp_path: Path) -> None:
    store.export("team/app:1", tmp_path / "out")
    store.export(image.digest, tmp_path / "again")
    store.export("team/app:1", tmp_path / "out.tar")
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    other = ImageStore(tmp_path / "other")
    for path in ("out", "out.tar"):
        back = other.import_(tmp_path / path)
        assert (back.name, back.digest, back.config) == ("team/app:1", image.digest, image.config)


def test_an_archive_for_docker_load(store: ImageStore, image: Image, tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        store.export("team/app:1", tmp_path / name, format="docker")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    back = ImageStore(tmp_path / "other").import_(tmp_path / "one.tar")
    assert (back.name, back.config, back.size) == (image.name, image.config, image.size)
    assert [os.path.basename(os.path.dirname(path)) for path in back.layer_paths] == [
        os.path.basename(os.path.dirname(path)) for path in image.layer_paths
    ]


def test_manifests_of_docker_become_those_of_oci(store: ImageStore, tmp_path: Path) -> None:
    layout = Layout([layer(entry("x", b"x"))], compress=True)
    media = "application/vnd.docker.distribution.manifest.v2+json"
    layout.manifest["mediaType"] = media
    layout.manifest["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json"  # type: ignore[index]
    layout.manifest["layers"][0]["mediaType"] = "application/vnd.docker.image.rootfs.diff.tar.gzip"  # type: ignore[index]
    index = {"schemaVersion": 2, "manifests": [layout.add_json(layout.manifest, media)]}
    store.import_(layout.write(tmp_path / "l", index), "d")
    store.export("d", tmp_path / "out")
    [described] = json.loads((tmp_path / "out/index.json").read_text())["manifests"]
    manifest = json.loads((tmp_path / "out/blobs/sha256" / described["digest"].partition(":")[2]).read_text())
    assert (manifest["config"]["mediaType"], manifest["layers"][0]["mediaType"]) == (CONFIG, LAYER + "+gzip")


def test_an_archive_has_its_name_when_it_is_complete(
    store: ImageStore, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is killed must not leave one that looks complete."""
    out, seen, add = tmp_path / "out.tar", list[bool](), export._Tar.add

    def look(target: Any, *arguments: Any) -> None:
        seen.append(out.exists())
        add(target, *arguments)

    monkeypatch.setattr(export._Tar, "add", look)
    store.export("team/app:1", out, format="docker")
    assert seen and not any(seen)
    assert [path.name for path in tmp_path.glob("out.tar*")] == ["out.tar"]


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("format", ["oci", "docker"])
def test_an_export_replaces_no_file_that_came_meanwhile(
    store: ImageStore, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, has_links: bool
) -> None:
    out, add = tmp_path / "out.tar", export._Tar.add

    def take_name(target: Any, *arguments: Any) -> None:
        out.write_text("of another program")
        add(target, *arguments)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patched, pytest.raises(InvalidRequest, match="exists"):
        patched.setattr(export._Tar, "add", take_name)
        if not has_links:
            patched.setattr(os, "link", refuse)
        store.export("team/app:1", out, format=format)  # type: ignore[arg-type]
    assert [path.read_text() for path in tmp_path.glob("out.tar*")] == ["of another program"]


def test_what_cannot_be_exported(store: ImageStore, image: Image, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for format in ("oci", "docker"):
        with pytest.raises(InvalidRequest, match="exists"):
            store.export(image.name, tmp_path / "there", format=format)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="format"):
        store.export(image.name, tmp_path / "x", format="zip")  # type: ignore[arg-type]
    with pytest.raises(ImageNotFound):
        store.export("nothing", tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == ["source", "store", "there"]


@pytest.mark.parametrize(
    ("format", "transport"), [("oci", "oci"), ("oci", "oci-archive"), ("docker", "docker-archive")]
)
def test_skopeo_reads_our_exports_and_we_its_copies(
    store: ImageStore, image: Image, tmp_path: Path, format: str, transport: str
) -> None:
    path = tmp_path / ("out" if transport == "oci" else "out.tar")
    store.export(image.name, path, format=format)  # type: ignore[arg-type]
    suffix = "" if format == "docker" else ":1"
    found = json.loads(run("skopeo", "inspect", "--config", f"{transport}:{path}{suffix}"))
    assert (found["config"]["Env"], found["config"]["WorkingDir"]) == (["A=b"], "/srv")
    for target in ("oci", "docker-archive"):
        copy = tmp_path / f"copy-{target}"
        options = ("--insecure-policy", "--tmpdir", str(tmp_path))
        run("skopeo", *options, "copy", f"{transport}:{path}{suffix}", f"{target}:{copy}:team/app:1")
        back = ImageStore(tmp_path / f"other-{target}").import_(copy, "team/app:1")
        assert back.config == image.config and Path(back.layer_paths[1], "new").read_bytes() == b"n"


def test_umoci_unpacks_our_export(store: ImageStore, image: Image, tmp_path: Path) -> None:
    store.export(image.name, tmp_path / "out")
    run("umoci", "unpack", "--rootless", "--image", f"{tmp_path}/out:1", tmp_path / "bundle")
    root = tmp_path / "bundle/rootfs"
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["etc", "etc/os-release", "h", "l", "new"]


def test_we_import_what_umoci_made(store: ImageStore, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:v1")
    (tmp_path / "file").write_text("hi")
    run("umoci", "insert", "--rootless", "--image", f"{layout}:v1", tmp_path / "file", "/srv/file")
    run("umoci", "config", "--image", f"{layout}:v1", "--config.cmd", "cat", "--config.env", "X=1")
    image = store.import_(layout, "made:v1")
    assert (image.config.cmd, image.config.env["X"]) == (("cat",), "1")
    assert Path(image.layer_paths[-1], "srv/file").read_text() == "hi"
