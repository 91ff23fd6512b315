"""The one place where a worker process is started: whatever confines workers is put around them here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import cache

from warmcell.backends.wasm.run_request import Directories, Directory
from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.host_program import CHILD_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Protocol
else:
    Protocol = object  # type checkers alone look at these


class WorkerProcess(Protocol):
    """A started worker, wherever it runs. `kill` may be called from any thread, at any time, more than once."""

    #: Known when it has begun.
    pid: int

    def begin(self) -> None:
        """To be called once before it is used, but for `kill` and `wait`; then it has its cage and loads."""
        ...

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int | None:
        """The exit status (negative for a signal), or None when it is still running after `timeout` seconds."""
        ...

    def show(self, directories: Directories) -> None:
        """Makes the directories reachable, each at its `place`; once, before anything of a guest's is in the worker."""
        ...

    def place(self, directory: Directory) -> str:
        """Where the worker finds one of the directories that it was shown."""
        ...

    def abandon(self) -> None:
        """This is a fork of the process that started it: forget it without touching it."""
        ...


class Launcher(Protocol):
    """Starts `argv`, or a copy of a process that has loaded the same, with `control` as descriptor 0, next to no
    environment, no other descriptor, its own session.

    The worker needs the system's libraries, the interpreter and `read_only` (at the same place). It ends by itself when
    the other end of the socket is closed. `confines`: of the host's other directories it can reach only those that it
    is shown, so the pool hands it out for exactly those.
    """

    isolation_class: str
    confines: bool

    def __call__(self, argv: Sequence[str], control: int, read_only: Sequence[str], places: int) -> WorkerProcess:
        """`places`: how many directories of each kind, read-only and writable, it may be shown."""
        ...

    def rest(self) -> None:
        """Called when the last worker is gone."""
        ...


class PlainProcess:
    """A worker that is a child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def begin(self) -> None:
        """It has."""

    def kill(self) -> None:
        # Popen never signals a process that it has reaped, so a recycled pid is never hit.
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def wait(self, timeout: float) -> int | None:
        import subprocess

        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def show(self, directories: Directories) -> None:
        """It can see everything that its user can."""

    def place(self, directory: Directory) -> str:
        return directory.host_path

    def abandon(self) -> None:
        self._process.returncode = 0  # for Popen it has ended: it never signals or waits for it again


class PlainLauncher:
    """A process like any other: what isolates the guest is the runtime alone."""

    isolation_class = "wasm"
    confines = False

    def __call__(self, argv: Sequence[str], control: int, read_only: Sequence[str], places: int) -> WorkerProcess:
        if not os.path.exists("/proc/self/stat"):
            raise BackendUnavailable("there is no /proc here", hint="mount it with `mount -t proc proc /proc`")
        import subprocess

        process = subprocess.Popen(
            list(argv),
            stdin=control,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={CHILD_MARK: "1"},
            cwd="/",
            start_new_session=True,
            close_fds=True,
        )
        return PlainProcess(process)

    def rest(self) -> None:
        """Nothing is kept between workers."""


@cache
def launcher() -> Launcher:
    """The process cage around the workers where this host has one, else none."""
    if sys.platform == "linux":
        from warmcell.backends.wasm.caged_launcher import CagedLauncher, has_cage

        if has_cage():
            return CagedLauncher()
    return PlainLauncher()
