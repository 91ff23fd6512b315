"""Starts worker processes, inside the process cage where the host supports it."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Sequence
from functools import cache

from warmcell.backends.wasm.run_request import HostDirectory, Mounts
from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime.host_program import CHILD_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

    from warmcell.backends.wasm.caged_launcher import CagedLauncher
    from warmcell.lifetime.run import Run


class PlainProcess:
    """A worker that is an ordinary child of this process. One in a cage has the same methods.

    `kill` may be called from any thread, at any time, more than once. `pid` is valid after `start`.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        #: For a worker in a cage: what the host replaced.
        self.replaced = ""

    def start(self, run: Run) -> None:
        """Waits until the process exists, which Popen has done. Only `kill` and `wait` may be called before it.

        Call it once. Raises `RunCancelled` when `run` is cancelled meanwhile.
        """

    def kill(self) -> None:
        # Popen never signals a process that it has reaped, so a recycled pid is safe.
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def wait(self, timeout: float) -> int | None:
        """The exit status (negative for a signal), or None if it is still running after `timeout` seconds."""
        import subprocess

        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def mount(self, directories: Mounts) -> None:
        """Makes the directories reachable, before the worker has any guest code. Call it once.

        Nothing to do here: it sees everything that its user sees.
        """

    def path_of(self, directory: HostDirectory) -> str:
        """The path of a mounted directory inside the worker."""
        return directory.host_path

    def abandon(self) -> None:
        """Forgets the process without touching it, in a fork of the program that started it."""
        self._process.returncode = 0  # makes Popen consider it ended: it never signals or waits for it again


class PlainLauncher:
    """Without a cage: only the runtime isolates the guest."""

    isolation_class = "wasm"
    #: Workers reach only the host directories mounted in them, so the pool hands each one out for exactly those.
    is_confining = False

    def launch(
        self, argv: Sequence[str], control: int, read_only: Sequence[str], mount_slots: int, run: Run
    ) -> PlainProcess:
        """Starts `argv`, or a fork of a process that has already loaded it, with `control` as descriptor 0.

        The worker gets next to no environment, no other descriptor and its own session. It needs the system's
        libraries, the interpreter and `read_only` (at the same paths). It exits when the other end of the socket is
        closed. `mount_slots`: how many directories of each kind, read-only and writable, can be mounted later. Raises
        `RunCancelled` when `run` is cancelled while it must wait.
        """
        if not os.path.exists("/proc/self/stat"):
            raise BackendUnavailable("/proc is not mounted here", hint="mount it with `mount -t proc proc /proc`")
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

    def release_idle(self) -> None:
        """Frees what is kept for further workers if none is left. Nothing is kept here."""


@cache
def worker_launcher() -> CagedLauncher | PlainLauncher:
    """The caged launcher if this host supports the process cage, else the plain one."""
    if sys.platform == "linux":
        from warmcell.backends.wasm.caged_launcher import CagedLauncher, has_cage

        if has_cage():
            return CagedLauncher()
    return PlainLauncher()


@cache
def check_executable_memory() -> None:
    """Compiled code needs it. wasmtime would find out after the minute that compiling takes, and blame the module."""
    if sys.platform != "linux":
        return
    try:
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except OSError:
        hint = "allow it (systemd: MemoryDenyWriteExecute=no, SELinux: execmem)"
        raise BackendUnavailable("wasm: this process may not make memory executable", hint=hint) from None
