"""The recipe: the order in which the cage is built. Any failure ends the run before a line of the guest's code.

`lock_in` is the whole of it, in the guest's own process; `become_sleeping_init` and `settle` are what a cell's first
process does meanwhile. Init does as little as possible: what it does not touch, it shares with the zygote.
"""

from __future__ import annotations

import os
import socket
from typing import Dict, NoReturn, Optional, Tuple

from ..cell import CODE_DIRECTORY, NOTIFICATIONS, PROXY_LISTENER, SETTLED, Channels, Kit, SleepingInit, hand_over
from ..failure import CageError, step, tell
from ..linux import capabilities, cgroups, fds, landlock, namespaces, rlimits, seccomp, sleeper
from ..linux.fds import close_all
from ..linux.syscalls import PR_SET_DUMPABLE, prctl
from ..plan import LaunchPlan
from . import root, verify


def lock_in(kit: Kit, channels: Channels, handoff: socket.socket, init: Optional[SleepingInit] = None) -> None:
    """Builds the cage around this process and hands over what others need to look after it.

    `init` is where there are namespaces already, which it enters first; else it was cloned into its own.
    """
    try:
        fds.use_as_stdio(channels.stdin, channels.stdout, channels.stderr)
        given: Dict[str, int] = {}
        if init is None:
            build(kit, is_furnished=False)
        else:
            join(kit, init)
            build(kit, is_furnished=True)
            given = _open_for_zygote(kit.plan)
        await_init(init, handoff)
        notifications = lock(kit, (channels.job, handoff.fileno(), *given.values()))
        if notifications >= 0:
            given[NOTIFICATIONS] = notifications
        check(kit, (channels.job, handoff.fileno(), *given.values()))
        hand_over(handoff, given)
        close_all(given.values())
        handoff.close()
        channels.status.detach()  # closed with the rest; the object must not close whatever has its number later
    except CageError as failure:
        _give_up(handoff, failure)
    except BaseException as error:
        _give_up(handoff, CageError("lock guest", getattr(error, "errno", 0) or 0, repr(error)))


def _give_up(handoff: socket.socket, failure: CageError) -> NoReturn:
    tell(handoff, failure)
    os._exit(1)


def join(kit: Kit, init: SleepingInit) -> None:
    """Into the namespaces of an init, and into the cgroup."""
    with step("join namespaces"):
        namespaces.join(init.pidfd, kit.plan.network)
    join_cgroup(kit)


def join_cgroup(kit: Kit) -> None:
    """With a keeper before the guest is forked, so that both are in it; else the guest alone."""
    with step("join cgroup"):
        cgroups.join(kit.cgroups)


def build(kit: Kit, is_furnished: bool) -> None:
    """The guest's world: identity, root, host name, network, limits, and then no privileges."""
    plan = kit.plan
    if plan.isolation == "namespaces":
        with step("take guest identity"):
            namespaces.become_guest()
        if kit.has_shared_root:
            root.build_from_copy(kit.trees[0], plan)
        else:
            root.build(plan, kit.trees)
        with step("name host", plan.hostname):
            namespaces.set_hostname(plan.hostname)
        with step("set namespace quotas"):
            namespaces.set_quotas()
        if not is_furnished:
            furnish(plan.network)
    with step("new session"):
        os.setsid()
        os.umask(0o022)
    with step("set limits"):
        rlimits.apply(plan.rlimits)
    _drop_privileges(plan)


def furnish(network: str) -> None:
    """What belongs to the namespaces and not to one guest."""
    if network == "loopback":
        with step("bring up loopback", "lo"):
            namespaces.bring_up_loopback()


def _drop_privileges(plan: LaunchPlan) -> None:
    if plan.isolation != "none":
        with step("drop capabilities"):
            capabilities.drop_all()
            capabilities.forbid_new_privileges()


def _open_for_zygote(plan: LaunchPlan) -> Dict[str, int]:
    """What the zygote cannot open itself, being outside."""
    given = {}
    listener = open_proxy_listener(plan)
    if listener is not None:
        given[PROXY_LISTENER] = listener.detach()
    if plan.report_path:
        given[CODE_DIRECTORY] = os.open(os.path.dirname(plan.report_path), os.O_PATH | os.O_CLOEXEC)
    return given


def open_proxy_listener(plan: LaunchPlan) -> Optional[socket.socket]:
    """The only way out of the guest's network: a listener in here whose connections the host's proxy accepts."""
    if not plan.listener_port:
        return None
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(("127.0.0.1", plan.listener_port))
    listener.listen(128)
    return listener


def await_init(init: Optional[SleepingInit], handoff: socket.socket) -> None:
    """Init must be out of the guest's reach before the guest is there: asleep, or a keeper that has settled.

    On a busy host it may not have had its turn of the processor when all of the above is done.
    """
    if init is None:
        if not handoff.recv(len(SETTLED)):
            raise CageError("start init", 0, "the keeper died")
        return
    trouble = os.read(init.asleep, 4096).decode("utf-8", "replace")
    if trouble:
        raise CageError("start init", 0, trouble)


def lock(kit: Kit, keep: Tuple[int, ...]) -> int:
    """The guest's own locks, seccomp last. Returns the descriptor on which refused calls are heard of, or -1."""
    plan = kit.plan
    with step("unshield guest"):
        # Changing its user shielded it, and a keeper could not look at what it uses.
        prctl(PR_SET_DUMPABLE, 1)
    with step("enter directory", plan.cwd):
        os.chdir(plan.cwd)
    with step("close descriptors"):
        fds.close_all_but(keep)
    if plan.landlock:
        with step("restrict with Landlock"):
            landlock.restrict(plan.landlock, deny_network=plan.isolation == "landlock" and plan.network != "host")
    if not plan.seccomp:
        return -1
    with step("install seccomp filter"):
        return seccomp.install(kit.filter)


def check(kit: Kit, keep: Tuple[int, ...]) -> None:
    """Refuses to go on unless the cage is exactly as planned."""
    if kit.plan.isolation == "none":
        return
    expected = verify.Expected(kit.plan, {0, 1, 2, *keep}, kit.outer_namespaces)
    found = verify.problems(verify.gather(), expected)
    if found:
        raise CageError("verify", 0, "; ".join(found))


def settle(plan: LaunchPlan) -> None:
    """A keeper takes the guest's identity and gives up every privilege; shielded, for the guest has the same user."""
    with step("shield init"):
        prctl(PR_SET_DUMPABLE, 0)
    if plan.isolation == "namespaces":
        with step("take guest identity"):
            namespaces.become_guest()
    _drop_privileges(plan)


def become_sleeping_init(network: str, program: int, lifeline: int, awake: int) -> NoReturn:
    """The first process of namespaces that stand ahead of their guest: furnishes them, gives up everything and sleeps.

    What goes wrong is told on the pipe that sleeping closes.
    """
    try:
        with step("take guest identity"):
            namespaces.become_guest()
        furnish(network)
        with step("drop capabilities"):
            capabilities.clear()
            capabilities.forbid_new_privileges()
        with step("put init to sleep"):
            sleeper.become(program, lifeline)
    except CageError as failure:
        os.write(awake, str(failure).encode())
    finally:
        os._exit(1)
