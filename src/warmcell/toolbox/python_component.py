"""The Python component: built once on the user's machine, then taken from the cache.

A wheel may bring its compiled form; else `componentize-py` (the extra `warmcell[wasm-python]`) makes it from the
sources in `python_app/` in about half a minute. A component is found by the hash of everything that it was made from,
and believed by its MAC.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from warmcell.lifetime.host_program import own_interpreter
from warmcell.lifetime.late_site import run_site
from warmcell.toolbox.ready_made import has_ready_made
from warmcell.toolbox.signed_directory import SignedDirectory, SignedFile, Tampered, Unusable, cache_directory

APP = Path(__file__).resolve().parent / "python_app"
COMPONENTIZE_PY = "0.25.1"
REMEDY = 'pip install "warmcell[wasm-python]"'
BUILD_TIMEOUT = 600
#: Components of other versions go, those that were not used for longest first. One is 36 MB.
MOST_BYTES = 256 << 20
WORLD = "interpreter"

Progress = Callable[[str], None]


class ComponentUnavailable(RuntimeError):
    """There is no Python component and none can be built; the message says what to do."""


def ensure_component(progress: Progress | None = None) -> str:
    """The component's name, for `read_component`; built first if need be.

    Safe to call from several processes at once; the first builds, the others wait. `progress` gets short texts while a
    build runs and is not called when the cache has it.
    """
    name, kept = component_name(), components()
    if not kept.has(name):
        _build_once(name, kept, progress or (lambda _text: None))
    return name


def read_component(name: str) -> bytes:
    """Its bytes, checked. One that somebody changed is built anew."""
    kept = components()
    try:
        file = kept.read(name)
    except Tampered:
        kept.forget(name)
        file = None
    if file is None:
        ensure_component()
        file = kept.read(name)
    if file is None:
        raise ComponentUnavailable("the Python component disappeared while it was read")
    return _content(file)


def is_cached() -> bool:
    return components().has(component_name())


def is_available() -> bool:
    """Whether a run would get it: it is there, or what builds it is."""
    try:
        if not has_ready_made(component_digest()) and not is_cached():
            require_builder()
    except ComponentUnavailable:
        return False
    return True


def component_name() -> str:
    """Changes with the sources and with the version of the tool."""
    digest = hashlib.sha256(f"componentize-py {COMPONENTIZE_PY}\0".encode())
    for file in sorted(APP.iterdir()):
        if file.suffix in (".py", ".wit"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return f"python-{digest.hexdigest()[:32]}"


def component_digest() -> str:
    """What its compiled form is found by."""
    return f"own:{component_name()}"


def components() -> SignedDirectory:
    path = cache_directory("components")
    if path is None:
        raise ComponentUnavailable("there is no home directory to keep the Python component in; set XDG_CACHE_HOME")
    try:
        return SignedDirectory(path)
    except (OSError, Unusable) as error:
        text = f"the Python component cannot be kept: {error}; set XDG_CACHE_HOME to a directory of yours"
        raise ComponentUnavailable(text) from None


def require_builder() -> None:
    run_site()  # the command may have left it out
    try:
        found = importlib.metadata.version("componentize-py")
    except importlib.metadata.PackageNotFoundError:
        text = "python3 in the WASM sandbox needs componentize-py to build its component once"
        raise ComponentUnavailable(f"{text}: {REMEDY}") from None
    if found != COMPONENTIZE_PY:
        raise ComponentUnavailable(f"componentize-py {COMPONENTIZE_PY} is needed, {found} is installed: {REMEDY}")


def _build_once(name: str, kept: SignedDirectory, report: Progress) -> None:
    require_builder()
    try:
        with _lock(Path(kept.path) / "build.lock", report):
            if not kept.has(name):  # another process may have built it while we waited
                report("building the Python component (once, about half a minute)")
                _remove_unfinished(Path(kept.path))
                _build(name, kept)
                kept.prune(MOST_BYTES)
                report("the Python component is ready")
    except OSError as error:
        raise ComponentUnavailable(f"the Python component cannot be kept in {kept.path}: {error.strerror}") from None


def _remove_unfinished(directory: Path) -> None:
    """What builders left that were killed. Whoever builds holds the lock, so none of these is somebody's."""
    for folder in directory.glob("build-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _build(name: str, kept: SignedDirectory) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=kept.path) as folder:
        made = build_component(Path(folder))
        with made.open("rb") as component:
            kept.write(name, component.fileno(), {})


def build_component(folder: Path) -> Path:
    """Builds it in an empty folder, whatever the cache has."""
    sources = folder / "app"
    shutil.copytree(APP, sources, ignore=shutil.ignore_patterns("__pycache__"))
    made = folder / "component.wasm"
    # -I: neither the current directory nor PYTHONPATH may lend modules to the build. But the builder itself is where we
    # found it, which is a PYTHONPATH's directory where pip made an environment to build a wheel in.
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); import componentize_py; componentize_py.script()"
    place = importlib.metadata.distribution("componentize-py").locate_file("")
    command = [own_interpreter(), "-I", "-c", program, str(place)]
    world = ["-q", "-d", str(sources / f"{WORLD}.wit"), "-w", WORLD]
    _run([*command, *world, "componentize", "app", "-p", str(sources), "-o", str(made)], sources)
    return made


def _run(command: list[str], cwd: Path) -> None:
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


def _content(file: SignedFile) -> bytes:
    with os.fdopen(file.descriptor, "rb") as content:
        content.seek(0)
        return content.read()


@contextlib.contextmanager
def _lock(path: Path, report: Progress) -> Iterator[None]:
    """Held by one process at a time and released by the kernel when its holder dies."""
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that builds the Python component")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
