"""The Python component: built once on the user's machine, then read from the cache.

A wheel may contain the compiled component. Otherwise `componentize-py` (the extra `warmcell[wasm-python]`) builds it
from the sources in `python_app/` in about half a minute. The cache finds a component by the hash of its sources and
verifies its MAC.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from warmcell.lifetime.host_program import own_interpreter
from warmcell.lifetime.late_site import run_site
from warmcell.lifetime.run import Run
from warmcell.toolbox.signed_directory import SignedDirectory, Tampered, Unusable, cache_directory

APP = Path(__file__).resolve().parent / "python_app"
COMPONENTIZE_PY = "0.25.1"
REMEDY = 'pip install "warmcell[wasm-python]"'
BUILD_TIMEOUT = 600
_PAUSE_SECONDS = 0.05
#: Older components are removed, least recently used first. One has 36 MB.
MOST_BYTES = 256 << 20
WORLD = "interpreter"

Progress = Callable[[str], None]


class ComponentUnavailable(RuntimeError):
    """There is no Python component and it cannot be built; the message says what to do."""


def ensure_component(progress: Progress | None = None, run: Run | None = None) -> str:
    """Builds the component unless it is cached. Returns its name, for `read_component`.

    Safe to call from several processes at once: the first one builds, the others wait. `progress` is called with short
    texts during a build. Cancelling `run` ends it.
    """
    name, kept = component_name(), components()
    if not kept.has(name):
        _build_once(name, kept, progress or (lambda _text: None), run or Run())
    return name


def read_component(name: str) -> bytes:
    """The verified bytes. A component that was tampered with is built again."""
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
    with os.fdopen(file.descriptor, "rb") as content:
        content.seek(0)
        return content.read()


def is_cached() -> bool:
    return components().has(component_name())


def is_available() -> bool:
    """Whether it is cached or can be built."""
    try:
        if not is_cached():
            require_builder()
    except ComponentUnavailable:
        return False
    return True


def component_name() -> str:
    """Depends on the sources and on the version of componentize-py."""
    digest = hashlib.sha256(f"componentize-py {COMPONENTIZE_PY}\0".encode())
    for file in sorted(APP.iterdir()):
        if file.suffix in (".py", ".wit"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return f"python-{digest.hexdigest()[:32]}"


def component_digest() -> str:
    """The key of the compiled component."""
    return f"own:{component_name()}"


def components() -> SignedDirectory:
    path = cache_directory("components")
    if path is None:
        raise ComponentUnavailable("no home directory for the Python component; set XDG_CACHE_HOME")
    try:
        return SignedDirectory(path)
    except (OSError, Unusable) as error:
        text = f"cannot store the Python component: {error}; set XDG_CACHE_HOME to a directory that you own"
        raise ComponentUnavailable(text) from None


def require_builder() -> None:
    run_site()  # the command line may have skipped it
    try:
        found = importlib.metadata.version("componentize-py")
    except importlib.metadata.PackageNotFoundError:
        text = "python3 in the WASM sandbox needs componentize-py to build its component once"
        raise ComponentUnavailable(f"{text}: {REMEDY}") from None
    if found != COMPONENTIZE_PY:
        raise ComponentUnavailable(f"needs componentize-py {COMPONENTIZE_PY}, but {found} is installed: {REMEDY}")


def _build_once(name: str, kept: SignedDirectory, report: Progress, run: Run) -> None:
    require_builder()
    try:
        with _lock(Path(kept.path) / "build.lock", report, run):
            if not kept.has(name):  # another process may have built it while we waited
                report("building the Python component (once per user, about half a minute)")
                for folder in Path(kept.path).glob("build-*"):  # of builds that were killed: we hold the lock
                    shutil.rmtree(folder, ignore_errors=True)
                _build(name, kept, run)
                kept.prune(MOST_BYTES)
    except OSError as error:
        raise ComponentUnavailable(f"cannot store the Python component in {kept.path}: {error.strerror}") from None


def _build(name: str, kept: SignedDirectory, run: Run) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=kept.path) as folder:
        made = build_component(Path(folder), run)
        with made.open("rb") as component:
            kept.write(name, component.fileno(), {})


def build_component(folder: Path, run: Run | None = None) -> Path:
    """Builds it in an empty folder, without looking into the cache."""
    sources = folder / "app"
    shutil.copytree(APP, sources, ignore=shutil.ignore_patterns("__pycache__"))
    made = folder / "component.wasm"
    # -I: the build must not import from the current directory or PYTHONPATH. The builder itself is passed by path: in
    # pip's isolated build environment it is found through PYTHONPATH.
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); import componentize_py; componentize_py.script()"
    location = importlib.metadata.distribution("componentize-py").locate_file("")
    command = [own_interpreter(), "-I", "-c", program, str(location)]
    world = ["-q", "-d", str(sources / f"{WORLD}.wit"), "-w", WORLD]
    _run([*command, *world, "componentize", "app", "-p", str(sources), "-o", str(made)], sources, run or Run())
    return made


def _run(command: list[str], cwd: Path, run: Run) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    ) as process:
        try:
            with run.on_cancel(process.kill):
                stdout, stderr = process.communicate(timeout=BUILD_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise ComponentUnavailable(f"building the Python component timed out after {BUILD_TIMEOUT} s") from None
        finally:
            process.kill()
    run.check()
    if process.returncode != 0:
        tail = (stderr or stdout).decode("utf-8", "replace").strip()[-2000:]
        raise ComponentUnavailable(f"building the Python component failed:\n{tail}")


@contextlib.contextmanager
def _lock(path: Path, report: Progress, run: Run) -> Iterator[None]:
    """Held by one process at a time; the kernel releases it when the holder dies."""
    with open(path, "a+b") as file:
        if not _try_lock(file.fileno()):
            report("waiting for another process to build the Python component")
            while not _try_lock(file.fileno()):
                run.check()
                time.sleep(_PAUSE_SECONDS)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
