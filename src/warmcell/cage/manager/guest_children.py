"""A guest that is the manager's own child, because its cell's init only sleeps.

The manager learns from it that the cage stands, checks that, answers the calls that it is refused, and reports how it
ended. Nothing of this takes a process of its own: a waiting cell is the guest and two pages of init.
"""

from __future__ import annotations

import os
import struct
import time

from .. import refused_paths, verify
from ..cell import CODE_DIRECTORY, NOTIFICATIONS, PROXY_LISTENER, SleepingInit, take_over
from ..failure import CageError, tell
from ..leftovers import Leftovers
from ..light import partial, socket
from ..linux import connections, foreign
from ..linux.mounts import is_full
from ..linux.notify import Listener
from ..linux.owned import close_all
from ..linux.processes import below_init, last_pid
from ..linux.syscalls import NUMBERS
from ..plan import Watch
from ..records import NamedTuple
from ..watching.watcher import LOST, Verdict, Watcher, watched
from ..wire import send_packet
from .pid_numbers import next_pid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

_MSG_DONTWAIT = 0x40
_TELL_AGAIN_SECONDS = 0.1


class Ending(NamedTuple):
    """What the kernel says of a process that was reaped."""

    status: int
    cpu: float
    peak: int


_P_PID, _EXITED, _DUMPED = 1, 1, 3
_ENDED_AND_UNREAPED = 4 | os.WNOHANG | 0x1000000 | 0x40000000  # WEXITED, WNOWAIT, __WALL
#: What waitid fills in, on 64-bit Linux: the code, whose it is and their status; the times, and the most memory.
_news, _NEWS = foreign.create_string_buffer(b"", 128), struct.Struct("=8xi4xi4xi")
_usage, _USAGE = foreign.create_string_buffer(b"", 144), struct.Struct("=5q")
_WAITID = NUMBERS.get("waitid", -1)
#: By itself: to make words of whatever may be asked for takes longer than the call.
_waitid = foreign.CDLL(None).syscall
_waitid.argtypes = [foreign.c_long, foreign.c_int, foreign.c_int, foreign.c_void_p, foreign.c_int, foreign.c_void_p]


def ending_of(pid: int) -> Optional[Ending]:
    """Of a child of ours that has ended, before it is reaped; None: it has not, or is none."""
    if _waitid(_WAITID, _P_PID, pid, _news, _ENDED_AND_UNREAPED, _usage) != 0:
        return None
    code, found, status = _NEWS.unpack_from(_news)
    if not found:
        return None
    seconds, microseconds, more_seconds, more_microseconds, most = _USAGE.unpack_from(_usage)
    cpu = seconds + more_seconds + (microseconds + more_microseconds) / 1e6
    return Ending(status << 8 if code == _EXITED else status | 0x80 * (code == _DUMPED), cpu, most * 1024)


class GuestChild:
    """One guest, from its fork to its end. It owns the status channel, the handoff, `go` and what is handed over."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        expected: verify.Expected,
        status: socket.socket,
        init: SleepingInit,
        handoff: socket.socket,
        begun: int,
        may_exec: bool,
        takes_list: bool = False,
    ) -> None:
        self.pid = pid
        #: What the supervisor is to have of it. The lifeline is for nobody else: when it dies, init wakes up and ends.
        self._introduction = [init.pidfd, pidfd, init.lifeline]
        self._plan = expected.plan
        self._expected = expected
        self._status = status
        self._init = init
        self._handoff = handoff
        self._begun = begun
        self._may_exec = may_exec
        self._takes_list = takes_list
        self._given: Dict[str, int] = {}
        #: The last number that our own namespace had given out: every task of the guest's takes one of those too.
        self._last_pid_before = 0
        self._is_ready = False
        self._listener: Optional[Listener] = None
        #: What was refused, and when that was last told.
        self._told: Dict[Tuple[str, str], float] = {}
        #: Its number with the watcher.
        self.watch: Optional[int] = None
        self._ending: Optional[Ending] = None
        #: Whether init has been ended.
        self.is_ending = False
        self._limits: Set[str] = set()
        self.leftovers: Optional[Leftovers] = None

    @property
    def listens_to(self) -> int:
        """The descriptor to wait for: at first the guest's word that it is locked in, then its refused calls."""
        if self._listener is not None:
            return self._listener.descriptor
        return self._handoff.fileno()

    def attend(self, watcher: Watcher) -> None:
        """Deals with what came on the descriptor that it listens to."""
        if self._listener is not None:
            self._listener.answer()
            if self.leftovers is not None:
                self.leftovers.were_heard()
            return
        try:
            self._hear(watcher)
        except (CageError, OSError) as error:
            self._handoff.close()
            self._fail(error)

    def _hear(self, watcher: Watcher) -> None:
        """Its word, with descriptors, and the end of that channel, which is the last thing of the list."""
        self._given = take_over(self._handoff)
        self._handoff.close()
        verify.check(self.pid, self._init.pid, self._expected)
        self._listen(watcher)
        watch = watched(self._plan, self._expected.host_id)
        if watch.is_needed:
            plan = self._plan._replace(watch=watch)
            asker, answer = self._status.fileno(), {"measured": True}
            self.watch = watcher.watch(plan, self._init.pidfd, self._begun, self._given, asker, answer)
        listener = self._given.pop(PROXY_LISTENER, -1)
        self._is_ready = True
        self._last_pid_before = last_pid()
        ready = {"ready": True, "list": self._takes_list}
        if watch.disk_bytes:
            ready["measures"] = True
        self._say(ready, [listener] if listener >= 0 else [])
        close_all([listener])

    def introduce(self) -> None:
        """Before it is ready, which says so as well: for somebody to end it who waits no longer, or for its end."""
        if self._introduction:
            self._say({}, [])

    def _say(self, message: Dict[str, Any], descriptors: List[int]) -> None:
        """With who it is, unless that has been said: whoever waits is woken once."""
        if self._introduction:
            message = {"pid": self._init.pid, **message}
        self._send(message, self._introduction + descriptors)
        close_all(self._introduction[1:])
        self._introduction = []

    def _note_shared_memory(self, watcher: Watcher, length: int) -> bool:
        return self.watch is not None and watcher.note_shared_memory(self.watch, length)

    def _listen(self, watcher: Watcher) -> None:
        """Where host directories are in sight, unix sockets are the guest's own only on the device of its scratch."""
        if NOTIFICATIONS not in self._given:
            return
        plan = self._plan
        scratch = self._given.get(CODE_DIRECTORY, -1)
        connect = None
        if plan.network != "host" and scratch >= 0 and any(bind.as_owner for bind in plan.binds):
            connect = partial(connections.connect, own_device=os.fstat(scratch).st_dev)
        note = partial(self._note_shared_memory, watcher)
        self._listener = Listener(self._given[NOTIFICATIONS], self.pid, connect, scratch, note, self._init.host_id)
        self._listener.may_exec_once = self._may_exec
        self._listener.tell = self._tell_denial if plan.terminals else None

    def _tell_denial(self, kind: str, what: str) -> None:
        """Of a cage that stays, at once: its report would come too late. Seldom enough that no guest can flood, and
        whoever does not listen loses it: the manager waits for nobody.
        """
        now = time.monotonic()
        if now < self._told.get((kind, what), 0.0) + _TELL_AGAIN_SECONDS:
            return
        self._told[kind, what] = now
        try:
            send_packet(self._status, {"denied": [kind, what]}, flags=_MSG_DONTWAIT)
        except OSError:
            pass  # that the supervisor is gone shows elsewhere

    def _fail(self, error: Exception) -> None:
        """Whatever is wrong with init is the cause of what is wrong with the guest: it dies with it."""
        self.introduce()
        failure = self._init.steps.failure()
        if failure is None and isinstance(error, CageError):
            failure = error
        tell(self._status, failure or CageError("lock guest", getattr(error, "errno", 0) or 0, "its process died"))
        self._init.end()

    @property
    def will_be_heard(self) -> bool:
        """Whether its end, when it comes, is told by the descriptor that it listens to as well."""
        return self._listener is not None and not self.is_ending

    @property
    def is_being_made(self) -> bool:
        return not self._is_ready

    @property
    def init_pid(self) -> int:
        return self._init.pid

    @property
    def host_id(self) -> int:
        return self._init.host_id

    def watch_disk(self, watcher: Watcher, watch: Watch, asker: int, answer: Dict[str, Any]) -> None:
        """From now on: it was shown directories of the host that it may write to. The answer says that they have been
        measured.
        """
        plan = self._plan._replace(watch=watch)
        self.watch = watcher.watch(plan, self._init.pidfd, self._begun, self._given, asker, answer)

    def lose_watcher(self) -> None:
        """What nobody watches does not run."""
        if self.watch is not None:
            self._init.end()

    def ended(self, ending: Ending) -> None:
        """What it left behind, now children of init, may still be about something: see `is_over`."""
        self._ending = ending
        if self.is_being_made and self._handoff.fileno() >= 0:
            self._tell_last_words()
        if not self.is_ending:
            self.leftovers = Leftovers()

    def _tell_last_words(self) -> None:
        """It died before its cage stood; what it said of that may not have been heard yet."""
        try:
            self._handoff.setblocking(False)
            if not self._given:
                self._given = take_over(self._handoff)
            self._fail(CageError("lock guest", 0, "its process died"))
        except (CageError, OSError) as error:
            self._fail(error)

    def is_over(self) -> bool:
        """Whether nothing is left in the cell that deserves more time."""
        assert self.leftovers is not None
        return self.is_ending or not self.leftovers.deserve_time(below_init(self._init.pid))

    def hold_mounts(self) -> List[int]:
        """Its mount namespace, for somebody to close when there is time.

        Whoever is last in one takes down its mounts, and waits for every processor to have noticed. That would be init,
        and the report's reader waits for init's end. Not where paths of the caller's are shown: they are free when the
        run is over.
        """
        if any(bind.as_owner for bind in self._plan.binds):
            return []
        try:
            return [os.open(f"/proc/{self._init.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)]
        except OSError:  # it has gone already, or there are no descriptors left
            return []

    def end_all(self) -> None:
        """Whatever is left ends with init. The last look at what it wrote comes after that."""
        self.is_ending = True
        self._limits = self._met_limits()
        self._init.end()

    def report(self, verdict: Verdict) -> None:
        """The supervisor is told. `close` may come later."""
        assert self._ending is not None
        report: Dict[str, Any] = {
            "exit": self._ending.status,
            "verdict": verdict.reason,
            "cpu": round(self._ending.cpu + verdict.cpu_lost, 6),
            "peak": max(self._ending.peak, verdict.peak),
            "limits": sorted(self._limits.union(verdict.met)),
            "denials": self._denials(self._ending.status),
        }
        if verdict == LOST:
            report = {"failed": ["watch", 0, "the watcher died"]}
        self._send(report)

    def _met_limits(self) -> Set[str]:
        """Where the kernel refused more, and told nobody but the guest."""
        met = set()
        # The code is on the one tmpfs of everything that the guest may write.
        if CODE_DIRECTORY in self._given and is_full(self._given[CODE_DIRECTORY]):
            met.add("disk")
        if self._has_met_most_tasks():
            met.add("processes")
        return met

    def _has_met_most_tasks(self) -> bool:
        """As many pids were given out as there may be tasks, and not one more: it was refused the next.

        Where tasks have come and gone the numbers go on, and only a look at the right time tells. A cgroup counts by
        itself. Asking the cell's namespace takes a process: not where all cells together had too few for one's limit.
        """
        most_tasks = dict(self._plan.rlimits).get("nproc", 0)
        if not self._plan.watch.memory_bytes or not most_tasks:
            return False
        were_born = last_pid() - self._last_pid_before  # negative where the numbers began again
        return not 0 <= were_born < most_tasks - 2 and next_pid(self._init.pidfd) == most_tasks + 1

    def _denials(self, status: int) -> List[List[str]]:
        found = self._listener.denials if self._listener else []
        if status and CODE_DIRECTORY in self._given:
            name = os.path.basename(self._plan.report_path)
            found = found + refused_paths.read_note(name, self._given[CODE_DIRECTORY])
        return found

    def close(self) -> None:
        """Lets go of all descriptors; what they led to goes on."""
        for channel in (self._handoff, self._status):
            channel.close()
        close_all([self._init.pidfd, self._begun, *self._introduction[1:], *self._given.values()])
        self._given, self._introduction = {}, []

    def _send(self, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            send_packet(self._status, message, descriptors)
        except OSError:  # the supervisor let go of the cell
            self._init.end()
