"""Starts the interpreter that a manager is made of. Needs next to nothing: a command begins with this."""

from __future__ import annotations

import fcntl
import os
from _socket import AF_UNIX, SOCK_SEQPACKET, socketpair  # without the classes around it, which take longer to load

import warmcell.cage
from warmcell.cage.environment import CAGED_ENV, CHILD_MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal

CAGE_DIR = str(warmcell.cage.__path__[0])
_CONTROL = 3
LOWEST_OWN = 10  # descriptors below are the numbers that the child's get
ENVIRONMENT = {**CAGED_ENV, CHILD_MARK: "1"}  # what most of its guests are to have: they need not change it
#: The environment variable by which a manager is handed over that was started before this program was (`bin/front.c`).
HANDED_OVER = "WARMCELL_MANAGER"

#: By which `warmcell top` knows a manager.
MANAGER_MARK = "from cage.manager.start import main"
#: The same as cage/__main__.py, but without a file name or runpy on the stack that guests can look down. And with as
#: many descriptors and as large files as it may have, since it lives longer than the moment in which its supervisor
#: has few left. What it loads stays: its collector has nothing to find until it serves.
BOOT = f"""
import gc, os, resource, sys
gc.disable()
from types import ModuleType
os.environ.pop("{CHILD_MARK}", None)
for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
    most = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (most, most))
os.chdir("/")
package = ModuleType("cage")
package.__path__ = [sys.argv.pop()]
sys.modules["cage"] = package
sys.path[:] = [entry for entry in sys.path if entry]
from cage.bundle import use
use(os.path.dirname(package.__path__[0]), "cage", "cage.")
{MANAGER_MARK}
main({_CONTROL})()()
""".strip()


def spawn(command: list[str], descriptors: Sequence[int]) -> int:
    """In a session of its own, with these descriptors (none of them low) as 0, 1, 2, ... and nothing else of ours."""
    return os.posix_spawnp(
        command[0],
        command,
        ENVIRONMENT,
        file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors)],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD],
    )


class Early:
    """A manager's process that was started before anybody could own it, and our ends of its channels.

    For a program that has just begun: no other thread is there that could fork, and what it has as 0, 1 and 2 may be
    nothing at all.
    """

    #: Whether it knows what it is to become.
    was_told = False

    def __init__(self, interpreter: str) -> None:
        self.interpreter = interpreter
        self._opened: list[int] = []
        try:
            # Pipes, not /dev/null: what a forked guest's sys.stdout remembers about its descriptor must be true of one.
            stdin, stdout, stderr = (self._out_of_the_way(os.pipe2(os.O_CLOEXEC)) for _ in range(3))
            ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
            control = self._out_of_the_way((ours.detach(), theirs.detach()))
            children = (stdin[0], stdout[1], stderr[1], control[1])
            self.pid = spawn([interpreter, "-I", "-S", "-c", BOOT, CAGE_DIR], children)
        except OSError:
            _close(self._opened)
            raise
        _close(children)
        self.control, self.complaints = control[0], stderr[0]
        self.others = (stdin[1], stdout[0])

    def _out_of_the_way(self, pair: tuple[int, int]) -> list[int]:
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, LOWEST_OWN) for each in pair]
        self._opened += moved
        _close(pair)
        return moved

    @classmethod
    def handed_over(cls, interpreter: str, words: str) -> Early:
        """One that was started by the program that became this one, in its words. ValueError: it will not do."""
        numbers, started, package = words.split("\n")
        pid, control, complaints, stdin, stdout, was_told = map(int, numbers.split())
        if started != interpreter or not os.path.samefile(package, os.path.dirname(CAGE_DIR)):
            raise ValueError("of another installation")
        early = cls.__new__(cls)
        early.interpreter, early.pid, early.was_told = interpreter, pid, bool(was_told)
        early.control, early.complaints, early.others = control, complaints, (stdin, stdout)
        os.waitid(os.P_PID, early.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # ours, and not somebody else's
        for descriptor in (early.control, early.complaints, *early.others):
            os.set_inheritable(descriptor, False)
        return early

    def discard(self) -> None:
        """Where it is not needed after all."""
        if self.was_told:
            self._await_clone()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        _close((self.control, self.complaints, *self.others))

    def _await_clone(self) -> None:
        """It becomes another process, a child of ours as it was, which is the first that it says."""
        from warmcell.cage.wire import packets_at, receive_packet

        control = packets_at(self.control)
        try:
            message, _ = receive_packet(control)
        except OSError:
            message = {}
        finally:
            control.detach()
        if "pid" in message:
            os.waitpid(self.pid, 0)
            self.pid = message["pid"]


def start_early(interpreter: str) -> Early | None:
    """The one that was handed over, or a new one. None: what was wrong is told when it is needed."""
    words = os.environ.pop(HANDED_OVER, "")
    try:
        if words:
            return Early.handed_over(interpreter, words)
    except (OSError, ValueError):
        pass  # whoever it is ends when its channel does, which is with us
    try:
        return Early(interpreter)
    except OSError:
        return None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
