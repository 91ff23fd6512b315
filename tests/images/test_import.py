"""Importing images that other tools wrote: what the store has afterwards."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.images.image_files import Layout, directory, docker_archive, entry, hardlink, layer, symlink

from warmcell.errors import ImageInvalid, ImageNotFound, InvalidRequest
from warmcell.images import ImageLimits, ImageStore
from warmcell.images.layer_tar import write_tree
from warmcell.images.limits import Budget
from warmcell.workspace.remove import remove_directory

BASE = [directory("etc"), entry("etc/os-release", b"ID=test\n"), symlink("etc/link", "/etc/os-release")]
CONFIG = {
    "Env": ["PATH=/bin", "EMPTY=", "A=b=c"],
    "WorkingDir": "srv/app",
    "User": "postgres",
    "Entrypoint": ["/bin/sh", "-c"],
    "Cmd": ["id"],
    "Labels": {"a": "b"},
    "ExposedPorts": {"80/tcp": {}},
    "StopSignal": "SIGINT",
    "Shell": None,
}


def read(path: str, name: str) -> bytes:
    return Path(path, name).read_bytes()


def test_a_layout_becomes_layers_and_a_configuration(store: ImageStore, tmp_path: Path) -> None:
    upper = layer(entry("etc/issue", b"hello\n", mtime=1234567890))
    image = store.import_(Layout([layer(*BASE), upper], CONFIG, compress=True).write(tmp_path / "l"), "app:1")
    assert (image.name, store.get("app:1"), store.list()) == ("app:1", image, [image])
    assert store.get(image.digest).layer_paths == image.layer_paths
    assert read(image.layer_paths[0], "etc/os-release") == b"ID=test\n"
    assert read(image.layer_paths[1], "etc/issue") == b"hello\n"
    assert os.stat(f"{image.layer_paths[1]}/etc/issue").st_mtime == 1234567890
    assert os.readlink(f"{image.layer_paths[0]}/etc/link") == "/etc/os-release"
    assert image.created is not None and image.created.year == 2024
    config = image.config
    assert config.env == {"PATH": "/bin", "EMPTY": "", "A": "b=c"}
    assert (config.workdir, config.user, config.entrypoint, config.cmd) == (
        "/srv/app",
        "postgres",
        ("/bin/sh", "-c"),
        ("id",),
    )
    assert (config.labels, config.exposed_ports, config.stop_signal) == ({"a": "b"}, ("80/tcp",), "SIGINT")


def test_an_archive_of_docker_save(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_(docker_archive(tmp_path / "saved.tar", [layer(*BASE)], ["team/app:3"], CONFIG))
    assert image.name == "team/app:3"
    assert read(image.layer_paths[0], "etc/os-release") == b"ID=test\n"
    packed = tmp_path / "saved.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "saved.tar").read_bytes()))
    assert store.import_(packed).digest == image.digest


def test_a_compressed_archive_leaves_no_copy_of_itself(store: ImageStore, tmp_path: Path) -> None:
    saved = docker_archive(tmp_path / "saved.tar", [layer(*BASE)], ["team/app:3"], CONFIG)
    packed = tmp_path / "saved.tar.gz"
    packed.write_bytes(gzip.compress(saved.read_bytes()))
    store.import_(packed)
    assert len(os.listdir(f"{store.path}/blobs")) == 3, "manifest, configuration and layer"
    assert store.prune() == 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_root_tar(store: ImageStore, tmp_path: Path, is_packed: bool) -> None:
    path, data = tmp_path / "Root FS.tar", layer(*BASE)
    path.write_bytes(gzip.compress(data) if is_packed else data)
    image = store.import_(path)
    assert image.name == "root-fs:latest"
    assert read(image.layer_paths[0], "etc/os-release") == b"ID=test\n"


def test_a_root_directory_gives_the_same_image_every_time(store: ImageStore, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_bytes(b"#!/bin/sh\n")
    (root / "bin/tool").chmod(0o4755)
    os.link(root / "bin/tool", root / "bin/twin")
    (root / "sh").symlink_to("/bin/tool")
    os.mkfifo(root / "pipe")
    Path(os.fsdecode(bytes(root) + b"/\xff\n")).write_bytes(b"odd")
    image = store.import_(root, "r")
    [tree] = image.layer_paths
    assert sorted(os.listdir(os.fsencode(tree))) == [b"bin", b"sh", b"\xff\n"]
    assert os.stat(f"{tree}/bin/tool").st_ino == os.stat(f"{tree}/bin/twin").st_ino
    assert stat.S_IMODE(os.stat(f"{tree}/bin/tool").st_mode) == 0o755
    assert ImageStore(tmp_path / "other").import_(root, "r").digest == image.digest


def test_modes_let_us_read_and_remove(store: ImageStore, tmp_path: Path) -> None:
    data = layer(directory("closed", 0o000), entry("closed/secret", b"x", mode=0o000), directory("tmp", 0o1777))
    [tree] = store.import_(Layout([data]).write(tmp_path / "l"), "m").layer_paths
    modes = {name: stat.S_IMODE(os.lstat(f"{tree}/{name}").st_mode) for name in ("closed", "closed/secret", "tmp")}
    assert modes == {"closed": 0o700, "closed/secret": 0o400, "tmp": 0o1777}
    assert {os.lstat(f"{tree}/{name}").st_uid for name in modes} == {os.geteuid()}


def test_a_umask_changes_nothing(store: ImageStore, tmp_path: Path) -> None:
    path = Layout([layer(entry("a/b/file", b"x", mode=0o666))]).write(tmp_path / "l")
    code = f"import os; os.umask(0o777); from warmcell.images import ImageStore; print(ImageStore({store.path!r}).import_({str(path)!r}, 'u').layer_paths[0])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    tree = ended.stdout.strip()
    assert ended.returncode == 0, ended.stderr
    assert [stat.S_IMODE(os.stat(f"{tree}/{name}").st_mode) for name in ("a", "a/b", "a/b/file")] == [
        0o755,
        0o755,
        0o666,
    ]


def test_hard_links_within_a_layer(store: ImageStore, tmp_path: Path) -> None:
    data = layer(*BASE, hardlink("copy", "./etc/os-release"), hardlink("/abs", "/etc/os-release"))
    [tree] = store.import_(Layout([data]).write(tmp_path / "l"), "h").layer_paths
    assert len({os.stat(f"{tree}/{name}").st_ino for name in ("copy", "abs", "etc/os-release")}) == 1


def test_parents_that_are_links_are_followed_within_the_layer(store: ImageStore, tmp_path: Path) -> None:
    data = layer(directory("usr/bin"), symlink("bin", "/usr/bin"), entry("bin/tool", b"t"))
    [tree] = store.import_(Layout([data]).write(tmp_path / "l"), "h").layer_paths
    assert read(tree, "usr/bin/tool") == b"t"


def test_layers_are_shared(store: ImageStore, tmp_path: Path) -> None:
    base = layer(*BASE)
    one = store.import_(Layout([base]).write(tmp_path / "one"), "one")
    two = store.import_(Layout([base, layer(entry("x"))]).write(tmp_path / "two"), "two")
    assert two.layer_paths[0] == one.layer_paths[0]


def test_names(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_(Layout([layer(*BASE)]).write(tmp_path / "one"), "docker.io/library/debian")
    assert image.name == "debian:latest"
    assert store.tag("debian", "localhost:5000/x/y:2").name == "localhost:5000/x/y:2"
    assert [found.name for found in store.list()] == ["debian:latest", "localhost:5000/x/y:2"]
    for missing in ("debian:13", "sha256:" + "0" * 64):
        with pytest.raises(ImageNotFound):
            store.get(missing)
    for wrong in ("", "A", "a/../b", "a:b:c", "x" * 300, "a@sha256:1", "../x"):
        with pytest.raises(InvalidRequest):
            store.get(wrong)


def test_an_image_for_another_machine_is_refused(store: ImageStore, tmp_path: Path) -> None:
    layout = Layout([layer(*BASE)])
    layout.manifest["config"] = layout.add_json(
        layout.config | {"architecture": "s390x"}, str(layout.manifest["config"]["mediaType"])
    )  # type: ignore[index]
    with pytest.raises(ImageInvalid, match="s390x"):
        store.import_(layout.write(tmp_path / "l"), "x")
    assert store.list() == []


def test_several_leases(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_(Layout([layer(*BASE)]).write(tmp_path / "one"), "one")
    with store.lease(image), store.lease(image):
        pass


def test_a_tree_deeper_than_the_stack_is_written(tmp_path: Path) -> None:
    """A guest chooses the depth of a work directory that is exported."""
    here = os.open(tmp_path, os.O_RDONLY)
    for name in ("deep", *["d"] * 1200):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    written = io.BytesIO()
    try:
        write_tree(str(tmp_path / "deep"), written, Budget(ImageLimits()))
    finally:
        remove_directory(str(tmp_path / "deep"))  # pytest's own removal is recursive
    written.seek(0)
    with tarfile.open(fileobj=written) as archive:
        assert max(map(len, archive.getnames())) == 2 * 1200 - 1


@pytest.mark.parametrize("moment", [2**62, -(2**62)])
def test_a_root_directory_with_times_of_any_year(moment: int, store: ImageStore) -> None:
    """A file system in memory keeps such times, and a guest sets them."""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        Path(directory, "x").write_text("x")
        for path in (f"{directory}/x", directory):
            os.utime(path, (moment, moment))
        image = store.import_(directory, "r")
    assert image.created is not None and 1970 <= image.created.year <= 2242


def test_an_image_made_in_the_first_year_has_a_time(store: ImageStore, tmp_path: Path) -> None:
    layout = Layout([layer(entry("x", b"x"))])
    kind = layout.manifest["config"]["mediaType"]
    layout.manifest["config"] = layout.add_json({**layout.config, "created": "0001-01-01T00:00:00"}, kind)
    image = store.import_(layout.write(tmp_path / "l"), "first")
    assert image.created is not None and image.created.timestamp() == -62_135_596_800


def test_an_archive_that_is_compressed_again_and_again(store: ImageStore, tmp_path: Path) -> None:
    """There are files that decompress to themselves: each level would take a descriptor, without end."""
    data = layer(*BASE)
    for _ in range(1100):
        data = gzip.compress(data, 1)
    (tmp_path / "root.tar.gz").write_bytes(data)
    with pytest.raises(ImageInvalid, match="more than once"):
        store.import_(tmp_path / "root.tar.gz")
