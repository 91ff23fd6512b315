"""The start of a keeper: it forks the guest, gives up all privileges, and reports when the cage is locked.

For the classes without namespaces, where a process must be the parent of everything that the guest leaves running, and
kill it at the end.
"""

from __future__ import annotations

import os

from .. import verify
from ..cell import NOTIFICATIONS, receive_locked
from ..failure import CageError, send_failure, step
from ..fast_imports import signal, socket
from ..guest import recipe
from ..linux import capabilities
from ..linux.call_list import CallList
from ..linux.descriptors import close_all
from ..linux.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, prctl
from ..plan import LaunchPlan
from ..records import NamedTuple
from ..sockets import from_descriptor, make_pair
from ..wire import send_packet
from .watch import Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple


class KeeperDescriptors(NamedTuple):
    """The descriptors of a keeper and its guest."""

    job: int
    go: int
    begun: int
    status: int
    stdin: int
    stdout: int
    stderr: int
    cgroups: Tuple[int, ...]


def run(steps: recipe.Recipe, may_exec: bool, given: KeeperDescriptors) -> None:
    """Starts the guest, which builds its cage. Returns only in the guest's process, locked in."""
    status = from_descriptor(given.status)
    plan = steps.plan
    try:
        with step("shield keeper"):
            # Before the fork: the guest has the same user, and must never see its keeper dumpable.
            prctl(PR_SET_DUMPABLE, 0)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        guest, handoff = _start_guest(steps, given)
        if guest == 0:
            status.detach()
            return
        kept = verify.identities((given.job, given.go, given.stdin, given.stdout, given.stderr))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python installs a handler for it
        _drop_privileges(plan)
        close_all([*given.cgroups, given.job, given.go, given.stdin, given.stdout, given.stderr])
        notifications = receive_locked(handoff).get(NOTIFICATIONS, -1)
        handoff.recv(1)  # until the guest closes it, which is its last call
        handoff.close()
        verify.check(guest, 0, verify.Expected(plan, kept, {}, os.geteuid()))
        send_packet(status, {"ready": True, "measures": bool(plan.watch.disk_bytes)})
    except CageError as failure:
        send_failure(status, failure)
        os._exit(1)
    except BaseException as error:
        send_failure(status, CageError("start guest", getattr(error, "errno", 0) or 0, repr(error)))
        os._exit(1)
    Keeper(plan, status, given.begun, guest, notifications, may_exec).watch()


def _start_guest(steps: recipe.Recipe, given: KeeperDescriptors) -> Tuple[int, socket.socket]:
    """Forks. The child builds and locks the cage, and reports on the other end of the returned socket."""
    ours, theirs = make_pair(socket.SOCK_SEQPACKET)
    handoff = theirs.fileno()
    descriptors = recipe.GuestDescriptors(
        given.job, given.go, given.stdin, given.stdout, given.stderr, handoff, rest=given.cgroups
    )
    prepared = steps.prepare(descriptors)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    theirs.detach()
    ours.detach()
    recipe.lock_in(prepared, handoff)
    return 0, ours


def _drop_privileges(plan: LaunchPlan) -> None:
    if plan.isolation != "none":
        calls = CallList()
        capabilities.drop_all(calls)
        calls.prepare(()).run()
