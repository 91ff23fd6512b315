"""Spawns the interpreter that becomes a manager. Imports almost nothing, because a command starts with this."""

from __future__ import annotations

import fcntl
import os
from _socket import SOCK_SEQPACKET  # the C module, which loads faster

import warmcell.cage
from warmcell.cage.environment import CAGED_ENV, CHILD_MARK
from warmcell.cage.linux.descriptors import make_pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal

CAGE_DIR = str(warmcell.cage.__path__[0])
_CONTROL = 3
LOWEST_OWN = 10  # the child's descriptors get lower numbers
ENVIRONMENT = {**CAGED_ENV, CHILD_MARK: "1"}  # that of most guests, which then need not change it
#: The environment variable by which `bin/front.c` hands over a manager that it started before this program.
HANDED_OVER = "WARMCELL_MANAGER"
LOADER_PATH = "LD_LIBRARY_PATH"

#: How `warmcell top` recognises a manager.
MANAGER_MARK = "from cage.manager.start import main"
#: Does what cage/__main__.py does, without a file name or runpy on the stack, which guests can inspect. Raises the soft
#: limits on descriptors and file size, because a manager may outlive a shortage of its supervisor's. The garbage
#: collector is off during loading, because modules are never freed.
BOOT = f"""
import gc, os, resource, sys
gc.disable()
from types import ModuleType
for name in ("{CHILD_MARK}", "{LOADER_PATH}"):
    os.environ.pop(name, None)
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
    """Spawns in a new session with only these descriptors, as 0, 1, 2, ... None of them may have such a number here."""
    # Some interpreters do not start without the directories that their loader searches.
    libraries = {LOADER_PATH: os.environ[LOADER_PATH]} if LOADER_PATH in os.environ else {}
    return os.posix_spawnp(
        command[0],
        command,
        {**ENVIRONMENT, **libraries},
        file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors)],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD],
    )


class PrestartedManager:
    """A manager's process and our ends of its channels, without an owner: `lifetime` is not loaded yet.

    For a program that has just started: no other thread can fork, and its own 0, 1 and 2 may be closed.
    """

    #: Whether its order was sent.
    has_order = False

    def __init__(self, interpreter: str) -> None:
        self.interpreter = interpreter
        self._opened: list[int] = []
        try:
            # Pipes, not /dev/null: a forked guest's sys.stdout caches facts about its descriptor, which is a pipe.
            stdin, stdout, stderr = (self._move_to_high_numbers(os.pipe2(os.O_CLOEXEC)) for _ in range(3))
            ours, theirs = make_pair(SOCK_SEQPACKET)
            control = self._move_to_high_numbers((ours.detach(), theirs.detach()))
            children = (stdin[0], stdout[1], stderr[1], control[1])
            self.pid = spawn([interpreter, "-I", "-S", "-c", BOOT, CAGE_DIR], children)
        except OSError:
            _close(self._opened)
            raise
        _close(children)
        self.control, self.stderr = control[0], stderr[0]
        self.others = (stdin[1], stdout[0])

    def _move_to_high_numbers(self, pair: tuple[int, int]) -> list[int]:
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, LOWEST_OWN) for each in pair]
        self._opened += moved
        _close(pair)
        return moved

    @classmethod
    def from_handover(cls, interpreter: str, handover: str) -> PrestartedManager:
        """The manager that `bin/front.c` started before exec. Raises ValueError if it is of another installation."""
        numbers, started, package = handover.split("\n")
        pid, control, stderr, stdin, stdout, has_order = map(int, numbers.split())
        if started != interpreter or not os.path.samefile(package, os.path.dirname(CAGE_DIR)):
            raise ValueError("of another installation")
        early = cls.__new__(cls)
        early.interpreter, early.pid, early.has_order = interpreter, pid, bool(has_order)
        early.control, early.stderr, early.others = control, stderr, (stdin, stdout)
        os.waitid(os.P_PID, early.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it is not our child
        for descriptor in (early.control, early.stderr, *early.others):
            os.set_inheritable(descriptor, False)
        return early

    def discard(self) -> None:
        """Kills a process that is not needed after all."""
        if self.has_order:
            self._await_clone()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        _close((self.control, self.stderr, *self.others))

    def _await_clone(self) -> None:
        """Follows the process to its clone: it clones itself, and its first message has the clone's pid."""
        from warmcell.cage.wire import packet_socket, receive_packet

        control = packet_socket(self.control)
        try:
            message, _ = receive_packet(control)
        except OSError:
            message = {}
        finally:
            control.detach()
        if "pid" in message:
            os.waitpid(self.pid, 0)
            self.pid = message["pid"]


def start_early(interpreter: str) -> PrestartedManager | None:
    """The manager that was handed over, or a new one. None on failure, which is reported when a manager is needed."""
    handover = os.environ.pop(HANDED_OVER, "")
    try:
        if handover:
            return PrestartedManager.from_handover(interpreter, handover)
    except (OSError, ValueError):
        pass  # that process exits when its channel closes, at the latest when we exit
    try:
        return PrestartedManager(interpreter)
    except OSError:
        return None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
