"""The one place where a worker process is started: whatever confines workers is put around them here."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

ISOLATION_CLASS = "wasm"
#: Whether a worker can reach only the paths it was launched with. Where that is so, the pool hands out a worker only
#: for the paths that it was made for; where it is not, any worker serves any run.
CONFINES_PATHS = False


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


def launch_worker(
    argv: Sequence[str],
    control_socket: socket.socket,
    read_only_paths: Sequence[str],
    writable_paths: Sequence[str],
) -> WorkerProcess:
    """Starts `argv` with `control_socket` as descriptor 0, no environment, no other descriptor, its own session.

    The worker needs the system's libraries, the interpreter and `read_only_paths`, and reaches host files only under
    the two lists of paths (at the same place). It ends by itself when the other end of the socket is closed.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=control_socket.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
        close_fds=True,
    )
    return WorkerProcess(process.pid, process)
