"""The Python component: built once on the user's machine, then taken from the cache.

It is 34 MB, so it does not travel in the wheel; `componentize-py` (the extra `warmcell[wasm-python]`) makes it from the
sources in `python_app/` in about half a minute. The cache is a directory that only the user can enter; a component is
found by the hash of everything that it was made from, and appears there by a rename, whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

APP = Path(__file__).resolve().parent / "python_app"
COMPONENTIZE_PY = "0.25.1"
REMEDY = 'pip install "warmcell[wasm-python]"'
BUILD_TIMEOUT = 600
WORLD = "interpreter"

Progress = Callable[[str], None]


class ComponentUnavailable(RuntimeError):
    """There is no Python component and none can be built; the message says what to do."""


def ensure_component(progress: Progress | None = None) -> Path:
    """The path of the component, built first if need be. Safe to call from several processes at once; the first builds,
    the others wait. `progress` gets short texts while a build runs and is not called when the cache has it."""
    target = component_path()
    if target.exists():
        return target
    report = progress or (lambda _text: None)
    require_builder()
    with lock(target.with_suffix(".lock"), report):
        if not target.exists():  # another process may have built it while we waited
            report("building the Python component (once, about half a minute)")
            build(target)
            report("the Python component is ready")
    return target


def is_cached() -> bool:
    return component_path().exists()


def component_path() -> Path:
    return cache_directory() / f"python-{component_key()}.wasm"


def component_key() -> str:
    """Changes with the sources and with the version of the tool."""
    digest = hashlib.sha256(f"componentize-py {COMPONENTIZE_PY}\0".encode())
    for file in sorted(APP.iterdir()):
        if file.suffix in (".py", ".wit"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base) / "warmcell" / "components"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix":
        check_owner(directory)
    return directory


def check_owner(directory: Path) -> None:
    """A cache that somebody else can write to would let them choose the code that we run."""
    for each in (directory, directory.parent):
        info = each.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            raise ComponentUnavailable(f"{each} is not a directory of yours; set XDG_CACHE_HOME to one")
        if stat.S_IMODE(info.st_mode) & 0o077:
            os.chmod(each, 0o700)


def require_builder() -> None:
    try:
        found = importlib.metadata.version("componentize-py")
    except importlib.metadata.PackageNotFoundError:
        text = "python3 in the WASM sandbox needs componentize-py to build its component once"
        raise ComponentUnavailable(f"{text}: {REMEDY}") from None
    if found != COMPONENTIZE_PY:
        raise ComponentUnavailable(f"componentize-py {COMPONENTIZE_PY} is needed, {found} is installed: {REMEDY}")


def build(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as folder:
        sources = Path(folder) / "app"
        shutil.copytree(APP, sources, ignore=shutil.ignore_patterns("__pycache__"))
        made = Path(folder) / "component.wasm"
        # -I: neither the current directory nor PYTHONPATH may lend modules to the build
        command = [sys.executable, "-I", "-c", "import componentize_py; componentize_py.script()"]
        world = ["-q", "-d", str(sources / f"{WORLD}.wit"), "-w", WORLD]
        run([*command, *world, "componentize", "app", "-p", str(sources), "-o", str(made)], sources)
        os.chmod(made, 0o600)
        os.replace(made, target)


def run(command: list[str], cwd: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise ComponentUnavailable(f"building the Python component took more than {BUILD_TIMEOUT} s") from None
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-2000:]
        raise ComponentUnavailable(f"building the Python component failed:\n{tail}")


@contextlib.contextmanager
def lock(path: Path, report: Progress) -> Iterator[None]:
    """Held by one process at a time and released by the kernel when its holder dies."""
    with open(path, "a+b") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("waiting for another process that builds the Python component")
                fcntl.flock(file, fcntl.LOCK_EX)
        else:
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
        yield
