"""What the host has: programs on PATH and in wheels, and a way to ask them something. Nothing is decided here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.host_program import CHILD_MARK

#: Distinguishes one installation of a file from the next, so that caches notice an upgrade.
FileStamp = tuple[str, int, int, int]


def is_program(path: str) -> bool:
    """Whether this user could start the file."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_program(name: str, search: str | None = None) -> str | None:
    """The program's path in the absolute entries of PATH; relative ones would let a working directory choose."""
    for directory in (os.environ.get("PATH", os.defpath) if search is None else search).split(os.pathsep):
        candidate = os.path.join(directory, name)
        if os.path.isabs(directory) and is_program(candidate):
            return candidate
    return None


def find_in_wheel(package: str, *parts: str) -> str | None:
    """A program that an installed package carries, found without importing the package."""
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
    """The file's identity now. Raises `OSError` when it is gone."""
    status = os.stat(path)
    return (path, status.st_ino, status.st_size, status.st_mtime_ns)


def signals_for_child() -> Callable[[], object] | None:
    """For `subprocess`: a program that waits for children of its own must not inherit that they are ignored."""
    import signal

    if os.name != "posix" or signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return None
    return partial(signal.signal, signal.SIGCHLD, signal.SIG_DFL)


def ask(argv: Sequence[str], timeout: float = 20.0) -> str:
    """What a toolchain says about itself. Run in `/`, so that no version file of the working directory has a say."""
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
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BackendUnavailable(
            f"{argv[0]} does not work: {said[-1] if said else f'exit status {done.returncode}'}", hint="check that path"
        )
    return done.stdout.decode("utf-8", "surrogateescape").strip()
