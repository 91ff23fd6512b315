"""The one place where a worker process is started: whatever confines workers is put around them here."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol


@dataclass(slots=True)
class WorkerProcess:
    """A started worker. `kill` may be called from any thread, at any time, more than once."""

    pid: int
    _process: subprocess.Popen[bytes]

    def kill(self) -> None:
        # Popen never signals a process that it has reaped, so a recycled pid is never hit.
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def wait(self, timeout: float) -> int | None:
        """The exit status (negative for a signal), or None when it is still running after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None


class Launched(Protocol):
    """A started worker, wherever it runs."""

    pid: int

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int | None: ...


class Launcher(Protocol):
    """Starts `argv` with `control` as descriptor 0, next to no environment, no other descriptor, its own session.

    The worker needs the system's libraries, the interpreter and `read_only`, and reaches host files only under the two
    lists of paths (at the same place). It ends by itself when the other end of the socket is closed.
    `confines_paths`: it really can reach no others, so the pool hands it out only for the paths that it was made for.
    """

    isolation_class: str
    confines_paths: bool

    def __call__(
        self, argv: Sequence[str], control: socket.socket, read_only: Sequence[str], writable: Sequence[str]
    ) -> Launched: ...

    def rest(self) -> None:
        """Called when a pool of workers was closed."""
        ...


class PlainLauncher:
    """A process like any other: what isolates the guest is the runtime alone."""

    isolation_class = "wasm"
    confines_paths = False

    def __call__(
        self, argv: Sequence[str], control: socket.socket, read_only: Sequence[str], writable: Sequence[str]
    ) -> Launched:
        process = subprocess.Popen(
            list(argv),
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            close_fds=True,
        )
        return WorkerProcess(process.pid, process)

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
