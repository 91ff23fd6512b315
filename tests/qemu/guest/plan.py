"""Which checks run in which setting. Read on both sides: in the machine to run them, outside to ask for each."""

from __future__ import annotations

from tests.qemu.guest import checks, payloads
from tests.qemu.guest.checks import Check
from tests.qemu.guest.settings import USER, Setting

_ALWAYS: dict[str, Check] = {
    "hello": checks.hello,
    "names its mechanism": checks.names_its_mechanism,
    **{f"memory: {kind}": checks.bomb(kind) for kind in payloads.MEMORY_BOMBS},
    "processes are bounded": checks.processes_are_bounded,
    "cpu time is bounded": checks.cpu_time_is_bounded,
    "timeout kills the tree": checks.timeout_kills_the_tree,
    "usage is plausible": checks.usage_is_plausible,
    "attacks fail": checks.attacks_fail,
    "denials are reported": checks.denials_are_reported,
}
_WITH_GROUPS: dict[str, Check] = {
    "uses a group of its own": checks.uses_a_group_of_its_own,
    "cpu share is bounded": checks.cpu_share_is_bounded,
    "keeps its controllers": checks.keeps_its_controllers,
    "waiting cells work": checks.waiting_cells_work,
    "landlock alone is refused": checks.landlock_alone_is_refused,
    "bare class is held by groups": checks.bare_class_is_held_by_groups,
    "sweeps after the killed": checks.sweeps_after_the_killed,
}
_REFUSED: dict[str, Check] = {"cpu share is refused": checks.cpu_share_is_refused}
_LAST: dict[str, Check] = {"nothing is left": checks.nothing_is_left}


def _some(*names: str) -> dict[str, Check]:
    return {name: FULL[name] for name in names} | _LAST


FULL = {**_ALWAYS, **_WITH_GROUPS, **_LAST}
WITHOUT_GROUPS = {**_ALWAYS, **_REFUSED, **_LAST}
DELEGATED = _some(
    "hello",
    "names its mechanism",
    "memory: many children",
    "memory: tmpfs",
    "processes are bounded",
    "timeout kills the tree",
    "attacks fail",
    "uses a group of its own",
    "cpu share is bounded",
    "keeps its controllers",
    "sweeps after the killed",
)
PLACED = _some("hello", "names its mechanism", "memory: one process") | {
    "lies in our own group": checks.lies_in_our_own_group
}
SERVICE = PLACED | {"limit on our service holds": checks.limit_on_our_service_holds}
SCOPE = _some(
    "hello",
    "names its mechanism",
    "memory: many children",
    "processes are bounded",
    "cpu share is bounded",
    "uses a group of its own",
    "attacks fail",
)
WITHOUT_CPU = _some("hello", "names its mechanism", "memory: one process") | _REFUSED

#: What is seen only after Warmcell has ended.
AFTERWARDS = "leaves no group and moves everybody back"

PLAN: tuple[tuple[Setting, dict[str, Check]], ...] = (
    (Setting("root", "cgroup v2"), FULL),
    (Setting("root's service", "cgroup v2", group="system/agent.service"), SERVICE),
    (Setting("user", "supervisor", USER, "session"), WITHOUT_GROUPS),
    (Setting("delegated", "cgroup v2", USER, "delegated/leaf", "delegated", has_company=True), DELEGATED),
    (Setting("alone in what is delegated", "cgroup v2", USER, "alone", "alone"), PLACED),
    (Setting("in company in what is delegated", "cgroup v2", USER, "crowd", "crowd", has_company=True), PLACED),
    (Setting("delegated without cpu", "cgroup v2", USER, "slice/some", "slice/some", "+memory +pids"), WITHOUT_CPU),
    (Setting("session of systemd", "cgroup v2", USER, "user.slice/session", manager="user.slice/manager"), SCOPE),
)
