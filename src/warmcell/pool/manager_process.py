"""Starts the process that becomes a manager with its zygote. Imports little, so that a command can call it first."""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Sequence
from functools import partial

import warmcell.guest
from warmcell.core.light import suppress
from warmcell.enforcers.namespaces_report import add_reporter
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import own
from warmcell.pool.prestarted_manager import BOOT, CAGE_DIR, LOWEST_OWN, PrestartedManager, spawn

_NAMESPACES_SECONDS = 2.0
#: How long a process that let go of its channel may take to exit. Only an overloaded host takes long.
_LAST_ERROR_SECONDS = 10.0
PYTHON_WORKER = os.path.join(warmcell.guest.__path__[0], "python")
WASM_WORKER = os.path.join(warmcell.guest.__path__[0], "wasm")
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:  # the C modules, which load faster
    import _signal as signal
    import _socket as socket


class ManagerProcess:
    """A process that becomes a manager, and our ends of its channels. Thread-safe.

    It exits when its control channel is closed. In a fork of the program this object counts as dead; the parent keeps
    using the process.
    """

    def __init__(self, interpreter: str, prefix: tuple[str, ...] = (), early: PrestartedManager | None = None) -> None:
        self._lock = threading.Lock()
        #: The order sent to it, or empty.
        self.order: dict[str, Any] = {}
        #: Received messages that are not handled yet.
        self.unread: list[dict[str, Any]] = []
        self._pidfd = -1
        self._channels, self._process = Descriptors(), Descriptors()
        with self._channels:
            if early is not None:
                self._adopt(early)
            else:
                self._spawn([*prefix, interpreter, "-I", "-S", "-c", BOOT, CAGE_DIR])
            self._open_pidfd()
        own(self)

    def _spawn(self, command: list[str]) -> None:
        self.control, their_control = self._channels.socketpair(socket.SOCK_SEQPACKET)
        # Pipes, not /dev/null: see PrestartedManager.
        stdin, _ = self._channels.pipe()
        _, stdout = self._channels.pipe()
        self._stderr, stderr = self._channels.pipe()
        children = (stdin, stdout, stderr, their_control)
        self.pid = _spawn(command, children)
        self._channels.close_only(*children)

    def _adopt(self, early: PrestartedManager) -> None:
        self._channels.take([*early.others, early.stderr])
        self.control = self._channels.take_socket(early.control)
        self.pid, self._stderr = early.pid, early.stderr

    def send_order(self, order: dict[str, Any], *, once: bool = False) -> None:
        """Sends the order that says what to become, even before the process has loaded. `once`: expect one guest."""
        from warmcell.cage.wire import send_packet

        send_packet(self.control, {**order, "once": True} if once else order)
        self.order = order

    def discard(self) -> None:
        """Kills a process that nothing else uses yet."""
        self.kill()
        self.await_end(5)
        self.close_channels()

    def _open_pidfd(self) -> None:
        try:
            self._pidfd = self._process.open(lambda: os.pidfd_open(self.pid))
        except OSError:
            os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the pid cannot have been reused
            os.waitpid(self.pid, 0)
            raise

    def switch_to(self, pid: int, pidfd: int) -> None:
        """The process cloned itself into new namespaces. The clone, also our child, replaces it."""
        with self._lock:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self._process.close()
            self._process.take([pidfd])
            self.pid, self._pidfd = pid, pidfd

    def report_namespaces(self) -> tuple[bool, int]:
        """Waits for its report on namespaces. Returns whether it created them, and the Landlock version.

        Other messages go to `unread`.
        """
        if self._pidfd < 0 or self.control.fileno() < 0:  # of our parent, or closed
            return False, 0
        from warmcell.cage.wire import receive_packet

        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while not self.unread and poll.poll(_NAMESPACES_SECONDS * 1000):
            try:
                message, descriptors = receive_packet(self.control)
            except ConnectionResetError:  # it died before it read its order
                message, descriptors = {}, []
            if "pid" in message:
                self.switch_to(message["pid"], descriptors[0])
            elif "namespaces" in message:
                return True, message["landlock"]
            else:
                self.unread.append(message)
        return False, 0

    def is_running(self) -> bool:
        with self._lock:
            if self._pidfd >= 0 and self._was_reaped():
                self._process.close()
                self._pidfd = -1
            return self._pidfd >= 0

    def _was_reaped(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # the host program ignores SIGCHLD, so the kernel reaped it
            return True

    def await_end(self, seconds: float) -> bool:
        """Waits up to `seconds`. Returns whether it has exited."""
        pidfd = self._pidfd
        if self.is_running():
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            with suppress(OSError):  # not enough memory to wait
                poll.poll(seconds * 1000)
        return not self.is_running()

    def await_end_or_hangup(self, seconds: float) -> bool:
        """Waits up to `seconds`. Returns whether it has exited or closed its channel; its guests may still run."""
        poll = select.poll()
        try:
            poll.register(self.control, 0)  # POLLHUP is always reported
            if self._pidfd >= 0:
                poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        except ValueError:  # closed by another thread
            return True
        except OSError:  # not enough memory to wait
            return False

    def kill(self) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def read_last_error(self) -> str:
        """Waits for its end. Returns the last line that it wrote to stderr."""
        self.await_end(_LAST_ERROR_SECONDS)
        os.set_blocking(self._stderr, False)
        with suppress(OSError):
            lines = os.read(self._stderr, 1 << 16).decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else "no message"
        return "no answer"

    def close_channels(self) -> None:
        """Closes its channels, so that it exits."""
        with self._lock:
            self._channels.close()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._pidfd = -1


def _spawn(command: list[str], descriptors: Sequence[int]) -> int:
    """Spawns with copies of the descriptors above the numbers that they get in the child."""
    copies = Descriptors()
    try:
        return spawn(
            command,
            [copies.open(partial(fcntl.fcntl, each, fcntl.F_DUPFD_CLOEXEC, LOWEST_OWN)) for each in descriptors],
        )
    finally:
        copies.close()


#: Processes started before they were needed, by interpreter.
_prestarted: dict[str, ManagerProcess] = {}


def start_ahead(interpreter: str, early: PrestartedManager | None = None, *, packages: str = "") -> None:
    """Starts a plain manager before it is needed, so that it loads while its supervisor loads.

    `packages`: the directory with the WebAssembly runtime, for a manager of WebAssembly workers.
    """
    if interpreter in _prestarted:
        if early is not None:
            early.discard()
        return
    with suppress(OSError):  # reported when a manager is needed
        start = ManagerProcess(interpreter, early=early)
        order = first_order("namespaces", packages=packages)
        try:
            if early is not None and early.has_order:
                start.order = order
            else:
                start.send_order(order, once=True)
        except OSError:
            start.discard()
            raise
        _prestarted[interpreter] = start
        add_reporter(start.report_namespaces)


def acquire_manager(interpreter: str, prefix: tuple[str, ...], order: dict[str, Any]) -> ManagerProcess:
    """The prestarted process if its order is the same, else a new one. Either way it has its order."""
    early = _prestarted.pop(interpreter, None)
    # Do not check that it is running: it may have been replaced by its clone, which its answer reports.
    if early is not None and not prefix and early.order == order:
        return early
    if early is not None:
        early.close_channels()
    start = ManagerProcess(interpreter, prefix)
    try:
        start.send_order(order)
    except BrokenPipeError:  # it died; reading its answer reports how
        pass
    except OSError:
        start.discard()
        raise
    return start


def first_order(
    isolation: str,
    *,
    has_worker: bool = True,
    packages: str = "",
    with_site: bool = False,
    preload: Sequence[str] = (),
    spares: bool = False,
    host_network: bool = False,
) -> dict[str, Any]:
    """The order that says what a manager and its zygote become. `packages`: where the WebAssembly runtime is."""
    return {
        "isolation": isolation,
        "worker": WASM_WORKER if packages else PYTHON_WORKER if has_worker else "",
        "packages": packages,
        "site": with_site,
        "preload": list(preload),
        "spares": spares,
        **({"host_network": True} if host_network else {}),
    }
