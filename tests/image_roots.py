"""Root file systems for images, made of programs that this host has: nothing is downloaded."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell import ImageNotFound
from warmcell.images import Image, ImageStore
from warmcell.lifetime.host_program import base_executable

_MERGED = ("bin", "sbin", "lib", "lib64")
_PROGRAMS = """
sh bash cat chmod chown cp dd dpkg dpkg-deb dpkg-split diff env grep head id ldconfig ls mkdir mount rm sed sleep sort
start-stop-daemon stat su tail tar touch tr true useradd wc yes
""".split()
_SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PASSWD = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:103:db:/var/lib/postgresql:/bin/sh\n"
_GROUP = "root:x:0:\nshadow:x:42:\npostgres:x:103:\nnogroup:x:65534:\n"


def make_root(root: Path, *programs: str) -> Path:
    """A root with these programs and the libraries that they need."""
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "root", "var/lib/postgresql", "var/tmp", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in _MERGED:
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text(_GROUP)
    (root / "etc/os-release").write_text('NAME="Cell Linux"\n')
    for program in programs:
        found = shutil.which(program, path=_SEARCH_PATH)
        require(found, f"{program} is not installed")
        assert found is not None
        _copy(os.path.realpath(found), root / "usr/bin" / program)
        copy_libraries(root, found)
    return root


def add_python(root: Path) -> None:
    """The interpreter that the tests run with, and its standard library, as the image's `python3`."""
    program = base_executable()
    library = sysconfig.get_path("stdlib", vars={"base": sysconfig.get_config_var("base")})
    place = root / os.path.realpath(library).lstrip("/")
    without = shutil.ignore_patterns("test", "tests", "site-packages", "dist-packages", "idlelib", "config-*", "*.a")
    shutil.copytree(library, place, ignore=without, symlinks=True, dirs_exist_ok=True)
    home = root / os.path.realpath(program).lstrip("/")
    _copy(os.path.realpath(program), home)
    if not (root / "usr/bin/python3").exists():
        (root / "usr/bin/python3").symlink_to("/" + str(home.relative_to(root)))
    copy_libraries(root, program, *map(str, place.glob("lib-dynload/*.so")))


def copy_libraries(root: Path, *programs: str) -> None:
    """The shared libraries and the loader of programs."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for library in sorted(set(re.findall(r"(?:=> |^\s+)(/\S+)", said, re.MULTILINE))):
        _copy(os.path.realpath(library), root / library.lstrip("/"))


def _copy(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(source, target)


def shared_place(factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this run share."""
    base = factory.getbasetemp()
    return (base.parent if base.name.startswith("popen") else base) / "images"


def shared_debian_like(place: Path) -> Image:
    """The image of `make_debian_like`, made by the first process that needs it."""
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return ImageStore(place / "store").get("debian-like:1")
        except ImageNotFound:
            return make_debian_like(place)


def make_debian_like(directory: Path) -> Image:
    """An image with a shell, Python and dpkg, in a store of its own."""
    root = make_root(directory / "root", *_PROGRAMS)
    add_python(root)
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/updates").mkdir()
    (root / "var/lib/dpkg/status").touch()
    return ImageStore(directory / "store").import_(root, "debian-like:1")


def make_busybox(directory: Path) -> Image:
    """One static program that has no libraries."""
    root = directory / "busybox"
    add_busybox(root, ("sh", "ls", "cat", "id", "echo", "ps", "sleep"))
    return ImageStore(directory / "store").import_(root, "busybox:1")


def add_busybox(root: Path, names: Iterable[str]) -> None:
    """Busybox under these names."""
    busybox = shutil.which("busybox", path=_SEARCH_PATH)
    require(busybox, "busybox is not installed")
    assert busybox is not None
    dynamic = subprocess.run(["ldd", busybox], capture_output=True, check=False)
    require(dynamic.returncode != 0, "busybox is not static")
    (root / "bin").mkdir(parents=True)
    shutil.copy2(busybox, root / "bin/busybox")
    for name in names:
        (root / "bin" / name).symlink_to("busybox")
