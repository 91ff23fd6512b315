"""Finds and queries programs of the host, on PATH and in wheels. Decides nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.host_program import CHILD_MARK

#: Identifies an installed file, so that caches notice an upgrade.
FileStamp = tuple[str, int, int, int]


def is_program(path: str) -> bool:
    """Whether this user can execute the file."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_program(name: str, search: str | None = None) -> str | None:
    """The program's path in the absolute entries of PATH; relative ones would let the working directory choose."""
    for directory in (os.environ.get("PATH", os.defpath) if search is None else search).split(os.pathsep):
        candidate = os.path.join(directory, name)
        if os.path.isabs(directory) and is_program(candidate):
            return candidate
    return None


def find_in_wheel(package: str, *parts: str) -> str | None:
    """A program in an installed package, found without importing the package."""
    from importlib.util import find_spec

    from warmcell.lifetime.late_site import run_site

    run_site()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = (os.path.join(place, *parts) for place in places)
    return next((path for path in found if is_program(path)), None)


def stamp(path: str) -> FileStamp:
    """The file's identity now. Raises `OSError` if it is gone."""
    status = os.stat(path)
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)


def has_foreign_proc() -> bool:
    """Whether /proc is mounted but belongs to another pid namespace."""
    try:
        return os.readlink("/proc/self") != str(os.getpid())
    except OSError:
        return False


def signals_for_child() -> Callable[[], object] | None:
    """A `preexec_fn` if SIGCHLD is ignored: programs that inherit that cannot wait for their children."""
    import signal

    if os.name != "posix" or signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return None
    return partial(signal.signal, signal.SIGCHLD, signal.SIG_DFL)


def query_tool(argv: Sequence[str], timeout: float = 20.0) -> str:
    """A tool's output. Runs in `/`, so that version files of the working directory have no effect."""
    import subprocess

    environment = {key: value for key, value in os.environ.items() if key != "NODE_OPTIONS"} | {CHILD_MARK: "1"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            cwd="/",
            env=environment,
            check=False,
            preexec_fn=signals_for_child(),
        )
    except subprocess.TimeoutExpired:
        raise BackendUnavailable(f"{argv[0]} did not answer within {timeout:g} s", hint="check that path") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
            raise BackendUnavailable(f"{argv[0]} did not start: {error.strerror}", hint="check that path") from None
        raise host_failure(error, f"start {argv[0]}") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise BackendUnavailable(f"{argv[0]} does not work: {reason}", hint="check that path")
    return done.stdout.decode("utf-8", "surrogateescape").strip()
