"""Looks at the finished cage from inside, before the guest's code, and names everything that is not as planned."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Set

from ..linux import fds, kernel_files, namespaces
from ..plan import LaunchPlan

_HELD_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_CAPABILITY_SETS = (*_HELD_SETS, "CapBnd")
_WANTED = (*_CAPABILITY_SETS, "NoNewPrivs", "Seccomp:")


class Facts(NamedTuple):
    """What the process is, as the kernel tells it."""

    status: Dict[str, str]
    descriptors: Set[int]
    #: mount point -> is it writable
    mounts: Dict[str, bool]
    namespaces: Dict[str, int]
    uid_map: str
    gid_map: str
    ids: Set[int]
    #: Who owns what the kernel tells of the first process; the guest itself, where init can be looked into.
    init_owner: int


class Expected(NamedTuple):
    """What it must be."""

    plan: LaunchPlan
    descriptors: Set[int]
    #: The namespaces of the process that made us: ours must all differ.
    outer_namespaces: Dict[str, int]


def gather() -> Facts:
    lines = kernel_files.read("/proc/self/status").split("\n")
    status = dict(line.split(":\t", 1) for line in lines if line.startswith(_WANTED))
    return Facts(
        status,
        fds.open_descriptors(),
        _mounts(),
        namespaces.identities(),
        _words("/proc/self/uid_map"),
        _words("/proc/self/gid_map"),
        {*os.getresuid(), *os.getresgid()},
        os.stat("/proc/1/mem").st_uid,
    )


def _words(path: str) -> str:
    return " ".join(kernel_files.read(path).split())


def _mounts() -> Dict[str, bool]:
    mounts: Dict[str, bool] = {}
    for line in kernel_files.read("/proc/self/mountinfo").split("\n")[:-1]:
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split(" ", 6)
        options = (*fields[5].split(","), *filesystem.rpartition(" ")[2].split(","))
        mounts[_unescape(fields[4])] = "ro" not in options
    return mounts


def _unescape(text: str) -> str:
    """Spaces and the like are written as octal. By hand: importing a codec would need files that may not be here."""
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def problems(facts: Facts, expected: Expected) -> List[str]:
    """Everything that deviates; an empty list is the only answer that lets the guest start. Pure."""
    found = _privilege_problems(facts, expected)
    extra = sorted(facts.descriptors ^ expected.descriptors)
    if extra:
        found.append(f"descriptors differ: {extra}")
    if expected.plan.isolation == "namespaces":
        found += _namespace_problems(facts, expected) + _mount_problems(facts, expected.plan)
    return found


def _privilege_problems(facts: Facts, expected: Expected) -> List[str]:
    sets = _CAPABILITY_SETS if expected.plan.isolation == "namespaces" else _HELD_SETS
    found = [f"{name} is {facts.status.get(name)}" for name in sets if int(facts.status.get(name, "1"), 16)]
    if facts.status.get("NoNewPrivs") != "1":
        found.append("NoNewPrivs is off")
    if expected.plan.seccomp and facts.status.get("Seccomp") != "2":
        found.append("no seccomp filter is installed")
    return found


def _namespace_problems(facts: Facts, expected: Expected) -> List[str]:
    own = set(facts.namespaces) - ({"net"} if expected.plan.network == "host" else set())
    found = [
        f"the {name} namespace is the host's"
        for name in sorted(own)
        if facts.namespaces[name] == expected.outer_namespaces.get(name)
    ]
    if facts.ids != {namespaces.GUEST_UID, namespaces.GUEST_GID}:
        found.append(f"runs as {sorted(facts.ids)}")
    if facts.init_owner == namespaces.GUEST_UID:
        found.append("init can be looked into")
    for name, text, inside in (
        ("user", facts.uid_map, namespaces.GUEST_UID),
        ("group", facts.gid_map, namespaces.GUEST_GID),
    ):
        words = text.split()
        if len(words) != 3 or words[0] != str(inside) or words[2] != "1":
            found.append(f"the {name} map is {text!r}")
    return found


def _mount_problems(facts: Facts, plan: LaunchPlan) -> List[str]:
    writable = {bind.target for bind in plan.binds if bind.writable}
    writable |= {path for path, _ in plan.scratch_dirs}
    readable = {bind.target for bind in plan.binds} | {"/"}
    found = [f"nothing is mounted at {point}" for point in sorted((readable | writable) - set(facts.mounts))]
    for point, is_writable in facts.mounts.items():
        if point == "/proc" or point.startswith("/proc/"):
            continue
        known = point in writable or point in readable or _is_below(point, readable | writable)
        if not known:
            found.append(f"unplanned mount at {point}")
        elif is_writable and point not in writable and not _is_below(point, writable):
            found.append(f"{point} is writable")
    return found


def _is_below(point: str, targets: Set[str]) -> bool:
    """A tree that was bound with what is mounted below it shows as further mounts."""
    return any(target != "/" and point.startswith(target + "/") for target in targets)
