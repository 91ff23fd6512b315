"""The recipe. Each function reads as the order in which the cage is built; any failure ends the run.

`share` and `settle` run in init, the first process of the new namespaces; `build` and `lock` in the guest's own
process, just before its code. Init does as little as possible: what it does not touch, it shares with the zygote.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple, NoReturn, Tuple

from .failure import CageError, step
from .linux import capabilities, cgroups, fds, landlock, mounts, namespaces, rlimits, seccomp, sleeper, verify
from .linux.syscalls import PR_SET_DUMPABLE, prctl
from .plan import LaunchPlan


class Kit(NamedTuple):
    """What the zygote prepared before the fork, because it is the same for many cells or needs the outside."""

    plan: LaunchPlan
    filter: bytes
    trees: Tuple[int, ...]
    cgroups: Tuple[int, ...]
    outer_namespaces: dict[str, int]
    #: The only tree is the whole root, and not one path of it.
    has_template: bool = False


class Home(NamedTuple):
    """Namespaces that stand already: their first process, the pipe that ends when it sleeps, and its lifeline."""

    pid: int
    init: int
    asleep: int
    lifeline: int

    def end(self) -> None:
        """Init, and with it everything in its namespaces."""
        try:
            signal.pidfd_send_signal(self.init, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Lets go of the descriptors. Without anybody at the other end of its lifeline, init ends."""
        for descriptor in (self.init, self.asleep, self.lifeline):
            os.close(descriptor)


def sleep(network: str, program: int, lifeline: int, awake: int) -> NoReturn:
    """The first process of a home: it furnishes it, gives up everything and sleeps.

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


def furnish(network: str) -> None:
    """What belongs to the namespaces and not to one guest."""
    if network == "loopback":
        with step("bring up loopback", "lo"):
            namespaces.bring_up_loopback()


def join(kit: Kit, home: Home) -> None:
    """Into the namespaces of a home, and into the cgroup."""
    with step("join namespaces"):
        namespaces.join(home.init, kit.plan.network)
    share(kit)


def await_sleep(home: Home) -> None:
    """Its init must be out of the guest's reach before the guest is there."""
    trouble = os.read(home.asleep, 4096).decode("utf-8", "replace")
    if trouble:
        raise CageError("start init", 0, trouble)


def share(kit: Kit) -> None:
    """The cgroup: with a keeper before the guest is forked, so that both are in it; else the guest alone."""
    with step("join cgroup"):
        cgroups.join(kit.cgroups)


def settle(kit: Kit) -> None:
    """Init takes the guest's identity and gives up every privilege; shielded, for the guest has the same user."""
    with step("shield init"):
        prctl(PR_SET_DUMPABLE, 0)
    if kit.plan.isolation == "namespaces":
        with step("take guest identity"):
            namespaces.become_guest()
    _drop_privileges(kit.plan)


def build(kit: Kit, is_furnished: bool) -> None:
    """The guest's world: identity, root, host name, network, limits, and then no privileges."""
    plan = kit.plan
    if plan.isolation == "namespaces":
        with step("take guest identity"):
            namespaces.become_guest()
        if kit.has_template:
            mounts.build_root_from(kit.trees[0], plan)
        else:
            mounts.build_root(plan, kit.trees)
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


def _drop_privileges(plan: LaunchPlan) -> None:
    if plan.isolation != "none":
        with step("drop capabilities"):
            capabilities.drop_all()
            capabilities.forbid_new_privileges()


def lock(kit: Kit, keep: Tuple[int, ...]) -> int:
    """The guest's own locks, seccomp last. Returns the descriptor on which init hears of refused calls, or -1."""
    plan = kit.plan
    with step("unshield guest"):
        # Changing its user shielded it, and init could not look at what it uses.
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
