"""The recipe: the order in which the cage is built. Any failure ends the run before a line of guest code.

The zygote compiles it once per plan into a list of system calls, which the guest's process runs. Cells of a plan differ
only in the descriptors that are passed to the list.
"""

from __future__ import annotations

import errno
import os
import resource
import struct

from ..cell_shape import CODE_DIRECTORY, NOTIFICATIONS, PROCESSES, PROXY_LISTENER, CellShape
from ..failure import CageError, send_failure
from ..fast_imports import socket, write_json
from ..linux import capabilities, fds, landlock, namespaces, seccomp
from ..linux.call_list import CallList, Field, PreparedCalls, Value
from ..linux.descriptors import from_descriptor
from ..linux.list_program import Channels, ListProgram
from ..linux.syscalls import PR_SET_DUMPABLE, call
from ..plan import LaunchPlan
from ..records import NamedTuple
from . import root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, NoReturn, Optional, Sequence, Tuple

    from ..linux.call_list import Buffer, CallList
    from ..linux.native_code import Arena

_STDIN, _STDOUT, _STDERR, _HANDOFF, _INIT, _ASLEEP = (Value(place) for place in range(6))
#: Bounds of the descriptors to close: four gaps around the three that stay open.
_GAPS = tuple((Value(6 + 2 * gap), Value(7 + 2 * gap)) for gap in range(4))
_GIVEN = 14  # followed by the cgroups and the trees

_TROUBLE_BYTES = 4096


class GuestDescriptors(NamedTuple):
    """The descriptors of one guest. `init` and `asleep` are for guests in namespaces; `rest` is cgroups, then trees."""

    job: int
    go: int
    stdin: int
    stdout: int
    stderr: int
    handoff: int
    init: int = -1
    asleep: int = -1
    rest: Tuple[int, ...] = ()


def from_order(descriptors: Sequence[int]) -> GuestDescriptors:
    """From the order in which the manager sends them for a guest in namespaces."""
    return GuestDescriptors._make([*descriptors[:8], tuple(descriptors[8:])])


class GuestSteps(NamedTuple):
    """The prepared list of one guest, and the buffer for the error of an init that could not go to sleep."""

    calls: PreparedCalls
    trouble: Buffer


class Recipe:
    """The call list for one shape, and the buffer for the error of its init. An arena lets it become an executable."""

    def __init__(self, shape: CellShape, arena: Optional[Arena] = None) -> None:
        self.plan = plan = shape.plan
        self.arena = arena
        is_caged = plan.isolation == "namespaces"
        trees = 1 + len(shape.attached) + len(plan.layers) + len(plan.upper) if is_caged else 0
        self.calls = calls = CallList(_GIVEN + shape.cgroups + trees, arena)
        self.trouble = calls.buffer(bytes(_TROUBLE_BYTES - 1))

        fds.use_as_stdio(calls, (_STDIN, _STDOUT, _STDERR))
        if is_caged:
            namespaces.join(calls, _INIT, plan.network)
        _join_cgroups(calls, _values(_GIVEN, shape.cgroups), must_hide=is_caged)
        if is_caged:
            namespaces.become_guest(calls, plan.uid, plan.gid)
            root.build(calls, plan, _values(_GIVEN + shape.cgroups, trees), shape.attached)
            namespaces.set_hostname(calls, plan.hostname)
            namespaces.set_quotas(calls)
            names_threads = ("/proc", True) in plan.landlock
            if plan.layers or names_threads:
                root.seal_proc(calls, names_threads, namespaces.pids_of_keepers(plan.terminals))
        _new_session(calls)
        if not plan.seccomp and has_keyrings():
            _leave_session_keyring(calls)
            if not plan.allow_keyrings:
                seccomp.refuse_keyrings(calls)
        _set_limits(calls, [limit for limit in plan.rlimits if limit[0] != "nofile"])
        if plan.isolation != "none":
            capabilities.drop_all(calls)
        if is_caged:
            _await_sleep(calls, self.trouble)
        _unshield(calls)
        _enter_directory(calls, plan.cwd)
        fds.close_gaps(calls, _GAPS)
        handover = _Handover(calls)
        opened = _open_for_manager(calls, plan, handover) if is_caged else []
        if plan.landlock:
            deny_network = plan.isolation == "landlock" and plan.network != "host"
            landlock.restrict(calls, plan.landlock, shape.files, deny_network)
        if plan.seccomp:
            opened.append(seccomp.install(calls, _filter(plan), handover.place_for(NOTIFICATIONS)))
        handover.send()
        # Last: sending descriptors fails if the user has more of them in flight than this limit.
        _set_limits(calls, [limit for limit in plan.rlimits if limit[0] == "nofile"])
        fds.close_in_list(calls, (*opened, _HANDOFF))

    def prepare(self, given: GuestDescriptors) -> GuestSteps:
        """Bind the list to the descriptors of one guest."""
        return GuestSteps(self.calls.prepare(self.words(given)), self.trouble)

    def words(self, given: GuestDescriptors) -> List[int]:
        first = (given.stdin, given.stdout, given.stderr, given.handoff, given.init, given.asleep)
        gaps = fds.gaps_between(given.job, given.go, given.handoff)
        return [*first, *gaps, *given.rest]

    def program(self, given: GuestDescriptors, kept: Sequence[int]) -> Optional[ListProgram]:
        """The list as an executable, for guests with exactly these descriptors; None if it does not fit its arena."""
        if self.calls.arena is None:
            return None
        return ListProgram(self.calls, self.words(given), Channels(given.job, given.go, given.handoff), kept)


def lock_in(steps: GuestSteps, handoff: int) -> None:
    """In the guest's process: build the cage around it, and send the manager its descriptors."""
    try:
        steps.calls.run()
    except CageError as failure:
        trouble = steps.trouble.value.decode("utf-8", "replace")
        _give_up(handoff, CageError(failure.step, failure.errno, trouble) if trouble else failure)
    except BaseException as error:
        _give_up(handoff, CageError("lock guest", getattr(error, "errno", 0) or 0, repr(error)))


def _give_up(handoff: int, failure: CageError) -> NoReturn:
    send_failure(from_descriptor(handoff), failure)
    os._exit(1)


def _values(first: int, count: int) -> Tuple[Value, ...]:
    return tuple(Value(place) for place in range(first, first + count))


def _filter(plan: LaunchPlan) -> bytes:
    is_caged = plan.isolation == "namespaces"
    shows_host = is_caged and any(bind.as_owner for bind in plan.binds)
    # Abstract sockets belong to the network: on the host's, they may be those of its desktop.
    has_own_sockets = plan.network != "host" or (not shows_host and landlock.has_scopes())
    profile = seccomp.Profile(
        allow_spawn=plan.allow_spawn,
        allow_internet=is_caged or plan.network == "host",
        is_caged=is_caged,
        shows_host=shows_host,
        allow_unix=is_caged and has_own_sockets,
        is_watched=bool(plan.watch.memory_bytes),
        has_host_disk=not is_caged or any(bind.writable for bind in (*plan.binds, *plan.upper)),
        has_agent=plan.terminals,
        is_root=is_caged and plan.uid == 0,
        allow_tracing=is_caged and plan.allow_tracing,
    )
    return seccomp.compile_filter(profile)


def _new_session(calls: CallList) -> None:
    calls.begin_step("new session")
    calls.call("setsid")
    calls.call("umask", 0o022)


def _await_sleep(calls: CallList, trouble: Buffer) -> None:
    """Init must be undumpable before guest code runs: it closes the pipe when it is asleep."""
    calls.begin_step("start init")
    calls.call("read", _ASLEEP, trouble, _TROUBLE_BYTES - 1, expected=0)


def _unshield(calls: CallList) -> None:
    calls.begin_step("unshield guest")
    # Changing the user made it undumpable, which would keep the watcher from measuring it.
    calls.call("prctl", PR_SET_DUMPABLE, 1)


def _enter_directory(calls: CallList, path: str) -> None:
    calls.begin_step("enter directory", path)
    calls.call("chdir", os.fsencode(path))


def _open_for_manager(calls: CallList, plan: LaunchPlan, handover: _Handover) -> List[Value]:
    """Open the descriptors that the manager cannot open from outside."""
    opened = []
    calls.begin_step("open for manager")
    if plan.listener_port:
        opened.append(_proxy_listener(calls, plan.listener_port, handover.place_for(PROXY_LISTENER)))
    if plan.report_path:
        place = handover.place_for(CODE_DIRECTORY)
        opened.append(fds.open_path(calls, os.path.dirname(plan.report_path), os.O_PATH | os.O_DIRECTORY, place))
    opened.append(fds.open_path(calls, "/proc", os.O_RDONLY | os.O_DIRECTORY, handover.place_for(PROCESSES)))
    return opened


def _proxy_listener(calls: CallList, port: int, place: Field) -> Value:
    """The guest's only egress: a listener in its network namespace whose connections the host's proxy accepts."""
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, bytes((127, 0, 0, 1)))
    listener = calls.call("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0, into=place)
    calls.call("bind", listener, address, len(address))
    calls.call("listen", listener, 128)
    return listener


class _Handover:
    """The message that the cage is complete, with descriptors."""

    def __init__(self, calls: CallList) -> None:
        self._calls = calls
        self._names: List[str] = []
        self._control = calls.buffer(bytes(_RIGHTS.size + 4 * _MOST_HANDED))

    def place_for(self, name: str) -> Field:
        """Add a name; returns the field in which the call that opens the descriptor stores it."""
        self._names.append(name)
        return Field(self._control, _RIGHTS.size + 4 * (len(self._names) - 1))

    def send(self) -> None:
        calls = self._calls
        calls.begin_step("hand over")
        payload = write_json({"locked": self._names}).encode()
        size = len(payload)
        vector = calls.buffer(struct.pack("=QQ", calls.address(calls.buffer(payload)), size))
        used = _RIGHTS.size + 4 * len(self._names) if self._names else 0
        _RIGHTS.pack_into(self._control, 0, used, socket.SOL_SOCKET, socket.SCM_RIGHTS)
        header = _MESSAGE.pack(0, 0, calls.address(vector), 1, calls.address(self._control), used, 0)
        calls.call("sendmsg", _HANDOFF, header, 0, expected=size)


#: struct cmsghdr and struct msghdr of 64-bit Linux.
_RIGHTS, _MESSAGE = struct.Struct("=Qii"), struct.Struct("=QI4xQQQQi4x")
_MOST_HANDED = 8


def _join_cgroups(calls: CallList, groups: Iterable[Value], must_hide: bool) -> None:
    """Move the process into groups whose `cgroup.procs` were opened outside, and hide their ancestors.

    Without namespaces, creating a cgroup namespace may be refused too.
    """
    calls.begin_step("join cgroup")
    for group in groups:
        calls.call("write", group, b"0", 1, expected=1)
    calls.call("unshare", namespaces.CLONE_NEWCGROUP, allowed_errno=0 if must_hide else errno.EPERM)


_LIMITS = {
    **{name: getattr(resource, f"RLIMIT_{name.upper()}") for name in "core cpu fsize nofile nproc memlock".split()},
    **{"msgqueue": 12, "sigpending": 11, "nice": 13, "rtprio": 14},  # not defined in every Python
}
#: Counted per user across all namespaces: each guest gets a share.
_OF_THE_USER = ("sigpending", "msgqueue")
_SHARES = 16


def _set_limits(calls: CallList, limits: Iterable[Tuple[str, int]]) -> None:
    """Set each as soft and hard limit, but not above the hard limit of the zygote."""
    calls.begin_step("set limits")
    for name, value in limits:
        number = _LIMITS[name]
        _, hard = resource.getrlimit(number)
        share = hard // _SHARES if name in _OF_THE_USER else hard
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, share)
        calls.call("prlimit64", 0, number, struct.pack("=QQ", ceiling, ceiling), None)


_GET_KEYRING_ID, _JOIN_SESSION_KEYRING, _OF_SESSION = 0, 1, -3


def has_keyrings() -> bool:
    """Whether the kernel has keyrings, and no outer seccomp filter refuses them to us and our guests."""
    try:
        call("keyctl", _GET_KEYRING_ID, _OF_SESSION, 0)
    except OSError as error:
        return error.errno not in (errno.ENOSYS, errno.EPERM)
    return True


def _leave_session_keyring(calls: CallList) -> None:
    """Join a new keyring for this guest alone, which ends with its last process.

    No namespace covers the session keyring: a guest would inherit the keys of the login session that started us. Our
    seccomp filters refuse keyrings; this is for the class without one.
    """
    calls.begin_step("leave session keyring")
    calls.call("keyctl", _JOIN_SESSION_KEYRING, 0)
