"""Starts the process that becomes a zygote: it needs only the interpreter's path, so it can be asked for early."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import threading
from contextlib import suppress

import warmcell.cage
from warmcell.lifetime.ownership import own

CAGE_DIR = str(warmcell.cage.__path__[0])
_CONTROL = 3
_LOWEST_OWN = 10  # descriptors below are the numbers that the child's get

#: The same as cage/__main__.py, but without a file name or runpy on the stack that guests can look down.
_BOOT = f"""
import os, sys
from types import ModuleType
os.chdir("/")
package = ModuleType("cage")
package.__path__ = [sys.argv.pop()]
sys.modules["cage"] = package
sys.path[:] = [entry for entry in sys.path if entry]
from cage.zygote.serve import main
main({_CONTROL})()
""".strip()


class Start:
    """A process that loads what a zygote is made of, and our ends of its channels. Safe to use from many threads."""

    def __init__(self, interpreter: str, prefix: tuple[str, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._pidfd = -1
        own(self)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Pipes, not /dev/null: what a forked guest's sys.stdout remembers about its descriptor must be true of a pipe.
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        children = [pipes[0][0], pipes[1][1], pipes[2][1], theirs.detach()]
        self.control = control
        self._ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        command = [*prefix, interpreter, "-I", "-S", "-c", _BOOT, CAGE_DIR]
        try:
            self.pid = _spawn(command, children)
        except BaseException:
            self.let_go()
            raise
        finally:
            for descriptor in children:
                os.close(descriptor)
        self._pidfd = os.pidfd_open(self.pid)

    def is_running(self) -> bool:
        with self._lock:
            if self._pidfd >= 0 and self._was_reaped():
                os.close(self._pidfd)
                self._pidfd = -1
            return self._pidfd >= 0

    def _was_reaped(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # the caller ignores SIGCHLD, and the kernel reaped it
            return True

    def await_end(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        if self.is_running():
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll(seconds * 1000)
        return not self.is_running()

    def kill(self) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def last_words(self) -> str:
        """The last line of its complaint, after it died."""
        self.await_end(2)
        os.set_blocking(self._ours[2], False)
        with suppress(OSError):
            lines = os.read(self._ours[2], 1 << 16).decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else "without a word"
        return "no answer"

    def abandon(self) -> None:
        """In a forked copy: lets go of it without ending it, because the original still holds the channels."""
        self._lock = threading.Lock()
        self.let_go()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def let_go(self) -> None:
        """Its control channel ends, and so does it."""
        self.control.close()
        while self._ours:
            os.close(self._ours.pop())


def _spawn(command: list[str], descriptors: list[int]) -> int:
    """In a session of its own, with these descriptors as 0, 1, 2, ... and nothing else of ours."""
    raised = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST_OWN) for descriptor in descriptors]
    try:
        return os.posix_spawnp(
            command[0],
            command,
            {"LANG": "C.UTF-8"},
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(raised)],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    finally:
        for descriptor in raised:
            os.close(descriptor)


#: Started ahead of need, by interpreter.
_ahead: dict[str, Start] = {}


def start_ahead(interpreter: str) -> None:
    """For a process that will surely need one: it loads while its supervisor still does."""
    with suppress(OSError):  # told when it is needed
        _ahead[interpreter] = Start(interpreter)


def started(interpreter: str, prefix: tuple[str, ...]) -> Start:
    """The one that was started ahead, if it will do, or a new one."""
    early = _ahead.pop(interpreter, None)
    if early is not None and not prefix and early.is_running():
        return early
    if early is not None:
        early.let_go()
    return Start(interpreter, prefix)
