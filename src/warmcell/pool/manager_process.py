"""Starts the process that becomes a manager with its zygote. Light to load, so that a command can call it first."""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Sequence
from functools import partial

import warmcell.guest
from warmcell.core.light import suppress
from warmcell.enforcers.namespaces_witness import set_reporter
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import own
from warmcell.pool.prestarted_manager import BOOT, CAGE_DIR, LOWEST_OWN, PrestartedManager, spawn

_NAMESPACES_SECONDS = 2.0
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
    """A process that becomes a manager, and our ends of its channels. Safe from many threads.

    It exits when its control channel is closed. In a fork it counts as dead, while the original keeps using it.
    """

    def __init__(self, interpreter: str, prefix: tuple[str, ...] = (), early: PrestartedManager | None = None) -> None:
        self._lock = threading.Lock()
        #: The order that it was sent, if any.
        self.order: dict[str, Any] = {}
        #: Messages that were received and not yet handled.
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
        # Pipes, for the same reason as in PrestartedManager.
        stdin, _ = self._channels.pipe()
        _, stdout = self._channels.pipe()
        self._complaints, stderr = self._channels.pipe()
        children = (stdin, stdout, stderr, their_control)
        self.pid = _spawn(command, children)
        self._channels.close_only(*children)

    def _adopt(self, early: PrestartedManager) -> None:
        self._channels.take([*early.others, early.complaints])
        self.control = self._channels.take_socket(early.control)
        self.pid, self._complaints = early.pid, early.complaints

    def send_order(self, order: dict[str, Any], *, once: bool = False) -> None:
        """Sends the order that says what to become. It can be sent before the process has loaded. `once`: it will most
        likely have a single guest.
        """
        from warmcell.cage.wire import send_packet

        send_packet(self.control, {**order, "once": True} if once else order)
        self.order = order

    def discard(self) -> None:
        """Kills it, where nothing else uses it yet."""
        self.kill()
        self.await_end(5)
        self.let_go()

    def _open_pidfd(self) -> None:
        try:
            self._pidfd = self._process.open(lambda: os.pidfd_open(self.pid))
        except OSError:
            os.kill(self.pid, signal.SIGKILL)  # it was not reaped, so the number is still its own
            os.waitpid(self.pid, 0)
            raise

    def switch_to(self, pid: int, pidfd: int) -> None:
        """It cloned itself into its own namespaces: the clone, also our child, takes its place."""
        with self._lock:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self._process.close()
            self._process.take([pidfd])
            self.pid, self._pidfd = pid, pidfd

    def what_it_saw(self) -> tuple[bool, int]:
        """Waits until it has created its namespaces. Returns whether it has, and the Landlock version.

        Other messages are kept for the reader of its answer.
        """
        if self._pidfd < 0 or self.control.fileno() < 0:  # not ours, or closed
            return False, 0
        from warmcell.cage.wire import receive_packet

        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while not self.unread and poll.poll(_NAMESPACES_SECONDS * 1000):
            try:
                message, descriptors = receive_packet(self.control)
            except ConnectionResetError:  # it died with its order unread
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
        except ChildProcessError:  # the caller ignores SIGCHLD, and the kernel reaped it
            return True

    def await_end(self, seconds: float) -> bool:
        """Whether it has exited within `seconds`."""
        pidfd = self._pidfd
        if self.is_running():
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            with suppress(OSError):  # not enough memory to wait
                poll.poll(seconds * 1000)
        return not self.is_running()

    def await_end_or_deafness(self, seconds: float) -> bool:
        """Whether within `seconds` it has exited or closed its channel, though its guests may go on."""
        poll = select.poll()
        try:
            poll.register(self.control, 0)  # POLLHUP is reported without being asked for
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

    def last_words(self) -> str:
        """The last line that it wrote to stderr before it died."""
        self.await_end(2)
        os.set_blocking(self._complaints, False)
        with suppress(OSError):
            lines = os.read(self._complaints, 1 << 16).decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else "no message"
        return "no answer"

    def let_go(self) -> None:
        """Closes its channels, so that it exits."""
        with self._lock:
            self._channels.close()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._pidfd = -1


def _spawn(command: list[str], descriptors: Sequence[int]) -> int:
    """Moves each descriptor above the numbers that the child's get, then spawns."""
    raised = Descriptors()
    try:
        return spawn(
            command,
            [raised.open(partial(fcntl.fcntl, each, fcntl.F_DUPFD_CLOEXEC, LOWEST_OWN)) for each in descriptors],
        )
    finally:
        raised.close()


#: Processes that were started ahead, by interpreter.
_ahead: dict[str, ManagerProcess] = {}


def start_ahead(interpreter: str, early: PrestartedManager | None = None, *, packages: str = "") -> None:
    """Starts a plain manager before it is needed, so that it loads while its supervisor loads.

    `packages`: it is for WebAssembly workers, whose runtime is in that directory.
    """
    if interpreter in _ahead:
        if early is not None:
            early.discard()
        return
    with suppress(OSError):  # reported when it is needed
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
        _ahead[interpreter] = start
        set_reporter(start.what_it_saw)


def acquire_manager(interpreter: str, prefix: tuple[str, ...], order: dict[str, Any]) -> ManagerProcess:
    """The process that was started ahead, if it fits, or a new one; it has its order."""
    early = _ahead.pop(interpreter, None)
    # Do not check whether it runs: it may have switched to its clone, which its answer reports.
    if early is not None and not prefix and early.order == order:
        return early
    if early is not None:
        early.let_go()
    start = ManagerProcess(interpreter, prefix)
    try:
        start.send_order(order)
    except BrokenPipeError:  # it died: the reader of its answer finds out how
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
    worker = WASM_WORKER if packages else PYTHON_WORKER if has_worker else ""
    of_python = {"site": with_site, "preload": list(preload), "spares": spares}
    network = {"host_network": True} if host_network else {}
    return {"isolation": isolation, "worker": worker, "packages": packages, **of_python, **network}
