"""The keeper's beginning: it starts the guest, gives up all privileges, and says when the cage stands.

It is for the classes without namespaces: there somebody must be the parent of everything that the guest leaves behind,
and kill that at the end.
"""

from __future__ import annotations

import os

from .. import verify
from ..cell import NOTIFICATIONS, take_over
from ..failure import CageError, step, tell
from ..guest import recipe
from ..light import signal, socket
from ..linux import capabilities
from ..linux.call_list import CallList
from ..linux.owned import close_all
from ..linux.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, prctl
from ..plan import LaunchPlan
from ..records import NamedTuple
from ..wire import send_packet
from .watch import Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple


class KeeperDescriptors(NamedTuple):
    """What a keeper and its guest are made with."""

    job: int
    go: int
    begun: int
    status: int
    stdin: int
    stdout: int
    stderr: int
    cgroups: Tuple[int, ...]


def run(steps: recipe.Recipe, may_exec: bool, given: KeeperDescriptors) -> None:
    """Starts the guest, which builds its cage. Returns in the guest's process, locked in; in the keeper's own never."""
    status = socket.socket(fileno=given.status)
    plan = steps.plan
    try:
        with step("shield keeper"):
            # Before the fork: the guest has the same user, and must never find its keeper open.
            prctl(PR_SET_DUMPABLE, 0)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        guest, handoff = _start_guest(steps, given)
        if guest == 0:
            status.detach()
            return
        kept = verify.identities((given.job, given.go, given.stdin, given.stdout, given.stderr))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python has a handler for this one
        _drop_privileges(plan)
        close_all([*given.cgroups, given.job, given.go, given.stdin, given.stdout, given.stderr])
        notifications = take_over(handoff).get(NOTIFICATIONS, -1)
        handoff.recv(1)  # until the guest closed it, the last thing that it does
        handoff.close()
        verify.check(guest, 0, verify.Expected(plan, kept, {}, os.geteuid()))
        send_packet(status, {"ready": True, "measures": bool(plan.watch.disk_bytes)})
    except CageError as failure:
        tell(status, failure)
        os._exit(1)
    except BaseException as error:
        tell(status, CageError("start guest", getattr(error, "errno", 0) or 0, repr(error)))
        os._exit(1)
    Keeper(plan, status, given.begun, guest, notifications, may_exec).watch()


def _start_guest(steps: recipe.Recipe, given: KeeperDescriptors) -> Tuple[int, socket.socket]:
    """Forks. The child builds and locks the cage and says how that went on the other end of the returned socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
