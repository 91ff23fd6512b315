"""Starts the process that becomes a manager with its zygote. Light to load: it can be asked for before all the rest."""

from __future__ import annotations

import fcntl
import os
import select
import threading
from collections.abc import Sequence
from functools import partial

import warmcell.guest
from warmcell.core.light import suppress
from warmcell.enforcers.namespaces_witness import will_tell
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import own
from warmcell.pool.spawn import BOOT, CAGE_DIR, LOWEST_OWN, Early, spawn

_NAMESPACES_SECONDS = 2.0
PYTHON_WORKER = os.path.join(warmcell.guest.__path__[0], "python")
WASM_WORKER = os.path.join(warmcell.guest.__path__[0], "wasm")
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:  # their halves in C: the rest takes longer to load
    import _signal as signal
    import _socket as socket


class Start:
    """A process that loads what a zygote is made of, and our ends of its channels. Safe to use from many threads.

    It ends when it is let go of. In a fork it is dead, while the original goes on using it.
    """

    def __init__(self, interpreter: str, prefix: tuple[str, ...] = (), early: Early | None = None) -> None:
        self._lock = threading.Lock()
        #: What it was told to become, if it was.
        self.order: dict[str, Any] = {}
        #: What it has said, and nobody has dealt with.
        self.heard: list[dict[str, Any]] = []
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
        # Pipes, for the same reason as an early one's.
        stdin, _ = self._channels.pipe()
        _, stdout = self._channels.pipe()
        self._complaints, stderr = self._channels.pipe()
        children = (stdin, stdout, stderr, their_control)
        self.pid = _spawn(command, children)
        self._channels.close_only(*children)

    def _adopt(self, early: Early) -> None:
        self._channels.take([*early.others, early.complaints])
        self.control = self._channels.take_socket(early.control)
        self.pid, self._complaints = early.pid, early.complaints

    def tell(self, order: dict[str, Any], *, once: bool = False) -> None:
        """What it is to become. It need not have loaded for that. `once`: it will most likely have a single guest."""
        from warmcell.cage.wire import send_packet

        send_packet(self.control, {**order, "once": True} if once else order)
        self.order = order

    def discard(self) -> None:
        """Where nobody else knows of it yet."""
        self.kill()
        self.await_end(5)
        self.let_go()

    def _open_pidfd(self) -> None:
        try:
            self._pidfd = self._process.opened(lambda: os.pidfd_open(self.pid))
        except OSError:
            os.kill(self.pid, signal.SIGKILL)  # nobody has reaped it, so the number is still its own
            os.waitpid(self.pid, 0)
            raise

    def moved(self, pid: int, pidfd: int) -> None:
        """It cloned itself into namespaces of its own: from now on the clone is meant, a child of ours as it was."""
        with self._lock:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self._process.close()
            self._process.take([pidfd])
            self.pid, self._pidfd = pid, pidfd

    def what_it_saw(self) -> tuple[bool, int]:
        """Waits until it has made its own namespaces, and told which Landlock there is if nothing else is missing.

        Whatever else it says is kept for who asks for its answer.
        """
        if self._pidfd < 0 or self.control.fileno() < 0:  # not ours, or let go of
            return False, 0
        from warmcell.cage.wire import receive_packet

        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while not self.heard and poll.poll(_NAMESPACES_SECONDS * 1000):
            try:
                message, descriptors = receive_packet(self.control)
            except ConnectionResetError:  # it died with its order unread
                message, descriptors = {}, []
            if "pid" in message:
                self.moved(message["pid"], descriptors[0])
            elif "namespaces" in message:
                return True, message["landlock"]
            else:
                self.heard.append(message)
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
        """Whether it has ended by then."""
        pidfd = self._pidfd
        if self.is_running():
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            with suppress(OSError):  # no memory to wait with: then it is not waited for
                poll.poll(seconds * 1000)
        return not self.is_running()

    def await_end_or_deafness(self, seconds: float) -> bool:
        """Whether by then it has ended, or listens to us no more, though what it was told before may go on."""
        poll = select.poll()
        try:
            poll.register(self.control, 0)  # of which the end is told unasked
            if self._pidfd >= 0:
                poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        except ValueError:  # somebody let go of it meanwhile
            return True
        except OSError:  # no memory to wait with
            return False

    def kill(self) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def last_words(self) -> str:
        """The last line of its complaint, after it died."""
        self.await_end(2)
        os.set_blocking(self._complaints, False)
        with suppress(OSError):
            lines = os.read(self._complaints, 1 << 16).decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else "without a word"
        return "no answer"

    def let_go(self) -> None:
        """Its control channel ends, and so does it."""
        with self._lock:
            self._channels.close()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._pidfd = -1


def _spawn(command: list[str], descriptors: Sequence[int]) -> int:
    """With each descriptor first moved out of the way of the numbers that the others get."""
    raised = Descriptors()
    try:
        return spawn(
            command,
            [raised.opened(partial(fcntl.fcntl, each, fcntl.F_DUPFD_CLOEXEC, LOWEST_OWN)) for each in descriptors],
        )
    finally:
        raised.close()


#: Started ahead of need, by interpreter.
_ahead: dict[str, Start] = {}


def start_ahead(interpreter: str, early: Early | None = None, *, packages: str = "") -> None:
    """For a process that will most likely need a plain one: it loads, and becomes it, while its supervisor loads.

    `packages`: it is for workers of WebAssembly, whose runtime is there.
    """
    if interpreter in _ahead:
        if early is not None:
            early.discard()
        return
    with suppress(OSError):  # told when it is needed
        start = Start(interpreter, early=early)
        order = first_order("namespaces", packages=packages)
        try:
            if early is not None and early.was_told:
                start.order = order
            else:
                start.tell(order, once=True)
        except OSError:
            start.discard()
            raise
        _ahead[interpreter] = start
        will_tell(start.what_it_saw)


def started(interpreter: str, prefix: tuple[str, ...], order: dict[str, Any]) -> Start:
    """The one that was started ahead, if it will do, or a new one; told its order."""
    early = _ahead.pop(interpreter, None)
    # Not asked whether it runs: by now it may have moved on into namespaces of its own, which its answer tells.
    if early is not None and not prefix and early.order == order:
        return early
    if early is not None:
        early.let_go()
    start = Start(interpreter, prefix)
    try:
        start.tell(order)
    except BrokenPipeError:  # it died: whoever waits for its answer finds out how
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
) -> dict[str, Any]:
    """What a manager and its zygote are to be. `packages`: where the runtime of its worker for WebAssembly is."""
    worker = WASM_WORKER if packages else PYTHON_WORKER if has_worker else ""
    of_python = {"site": with_site, "preload": list(preload), "spares": spares}
    return {"isolation": isolation, "worker": worker, "packages": packages, **of_python}
