"""The small system that boots: busybox, a Python with its standard library, Warmcell, and the checks."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.qemu.archive import Entry, write_archive

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src" / "warmcell"
BUSYBOX = "/bin/busybox"
MANAGER = "/usr/lib/systemd/systemd"
_TOOLS = (MANAGER, "/usr/bin/systemd-run", "/usr/bin/env", "/usr/bin/cat")
_UNITS = "/usr/lib/systemd/user"
_UNIT_NAMES = ("app.slice", "basic.target", "default.target", "exit.target", "shutdown.target", "systemd-exit.service")
DIRECTORIES = ("dev", "proc", "sys", "tmp", "run", "etc", "root", "home/user", "canary")
_TOP_LEVEL = ("bin", "sbin", "lib", "lib64")
_LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "site-packages",
    "dist-packages",
}
_ASK = "import json,os,sys,sysconfig;print(json.dumps([os.path.realpath(sys.executable),sysconfig.get_path('stdlib')]))"


def find_interpreter() -> tuple[str, str] | None:
    """The program and the standard library of the host's own Python 3.11 or newer; the one on PATH may be a shim."""
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3", "python3"):
        try:
            done = subprocess.run([candidate, "-I", "-S", "-c", _ASK], capture_output=True, text=True, check=True)
            program, library = json.loads(done.stdout)
            return program, library
        except (OSError, subprocess.CalledProcessError):
            continue
    return None


def initramfs() -> bytes:
    """A root that cannot be pivoted away from would hide errors, so the archive only carries the real one."""
    buffer = io.BytesIO()
    busybox = Path(BUSYBOX).read_bytes()
    write_archive(
        buffer,
        [
            *(Entry(name) for name in ("bin", "dev", "proc", "new")),
            Entry("dev/console", device=(5, 1)),
            Entry("dev/null", device=(1, 3)),
            Entry("bin/busybox", busybox),
            Entry("init", (HERE / "guest" / "init").read_bytes()),
            Entry("root.tar", _root()),
        ],
    )
    return buffer.getvalue()


def _root() -> bytes:
    interpreter = find_interpreter()
    assert interpreter is not None
    program, library = interpreter
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in DIRECTORIES:
            add_directory(tar, name)
        for name in _TOP_LEVEL:
            if os.path.islink(f"/{name}"):
                tar.add(f"/{name}", name)
        files = {BUSYBOX, program, *_TOOLS, *_library_files(library)}
        files |= set(_shared_objects([program, *_TOOLS, *(name for name in files if name.endswith(".so"))]))
        files |= {f"{_UNITS}/{name}" for name in _UNIT_NAMES}
        for name in sorted(files):
            tar.add(os.path.realpath(name), _real_place(name))
        add_link(tar, "usr/bin/python3", program)
        add_link(tar, "usr/bin/sh", BUSYBOX)
        add_package(tar, program)
        for path in (HERE / "guest").iterdir():
            if path.is_file():
                tar.add(path, f"checks/tests/qemu/guest/{path.name}", filter=for_everybody)
    return buffer.getvalue()


def add_package(tar: tarfile.TarFile, program: str) -> None:
    """Compiled on the way, by the interpreter that will run it: the emulated one would take seconds for that."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(SOURCE, f"{work}/warmcell", ignore=shutil.ignore_patterns("__pycache__", "*.wasm"))
        options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", work, "-p", "/warmcell"]
        subprocess.run([program, "-I", "-m", "compileall", *options, work], check=True)
        tar.add(f"{work}/warmcell", "warmcell/warmcell", filter=for_everybody)


def add_directory(tar: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(entry)


def add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    if f"/{name}" != target:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        tar.addfile(entry)


def _real_place(name: str) -> str:
    """Without the top-level links: /lib/x lies in /usr/lib/x where /lib is a link. Names of libraries stay."""
    directory, base = os.path.split(name)
    return os.path.join(os.path.realpath(directory), base).lstrip("/")


def _library_files(library: str) -> Iterator[str]:
    for directory, names, files in os.walk(library):
        names[:] = [name for name in names if name not in _LEFT_OUT and not name.startswith("config-")]
        yield from (os.path.join(directory, name) for name in files if name.endswith((".py", ".pyc", ".so")))


def _shared_objects(programs: list[str]) -> Iterator[str]:
    """What the loader finds for them on this host. A library that is missing here would be missing there too."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            yield found[1]


def for_everybody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mode |= 0o555 if entry.isdir() else 0o444
    return entry
