"""Checks a finished cage before guest code runs in it, and lists all deviations from the plan.

The check is made from outside, by the process that supervises the guest, so that a broken cage cannot affect it.
"""

from __future__ import annotations

import os

from .failure import CageError
from .fast_imports import lru_cache
from .guest_entry.root import TERMINALS
from .linux import kernel_files, namespaces
from .linux.mount_table import MountTable
from .plan import LaunchPlan
from .records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Set, Tuple, Union

    Identity = Tuple[int, int]

_HELD_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_CAPABILITY_SETS = (*_HELD_SETS, "CapBnd")
_WANTED = (*_CAPABILITY_SETS, "NoNewPrivs", "Seccomp:", "Uid", "Gid")


def identities(files: Iterable[Union[int, str]]) -> List[Identity]:
    """Device and inode of each, sorted."""
    return sorted((status.st_dev, status.st_ino) for status in map(os.stat, files))


class Facts(NamedTuple):
    """The state of the process, from /proc."""

    status: Dict[str, str]
    #: Device and inode of its open descriptors.
    descriptors: List[Identity]
    #: Mount point: whether it is writable.
    mounts: Dict[str, bool]
    #: Mount points with several mounts, of which the last covers the others.
    covered: Tuple[str, ...]
    namespaces: Dict[str, int]
    uid_map: str
    gid_map: str
    #: The owner of init's /proc entries; the guest itself where init is dumpable.
    init_owner: int


class Expected(NamedTuple):
    """The state that the process must have."""

    plan: LaunchPlan
    descriptors: List[Identity]
    #: The manager's namespaces, from which all of its own must differ.
    outer_namespaces: Dict[str, int]
    #: Its uid and gid in the user namespace of the checking process.
    host_id: int


def check(pid: int, init: int, expected: Expected) -> None:
    """Raise `CageError` unless the cage around that process is exactly as planned."""
    if expected.plan.isolation == "none":
        return
    try:
        found = problems(gather(pid, init, expected.plan), expected)
    except OSError as error:
        raise CageError("verify", error.errno or 0, str(error.filename or "")) from None
    if found:
        raise CageError("verify", 0, "; ".join(found))


def gather(pid: int, init: int, plan: LaunchPlan) -> Facts:
    base = f"/proc/{pid}"
    lines = kernel_files.read(f"{base}/status").split("\n")
    status = dict(line.split(":\t", 1) for line in lines if line.startswith(_WANTED))
    return Facts(
        status,
        identities(f"{base}/fd/{name}" for name in os.listdir(f"{base}/fd")),
        *_mounts(pid, plan),
        namespaces.identities(pid),
        _words(f"{base}/uid_map"),
        _words(f"{base}/gid_map"),
        os.stat(f"/proc/{init}/mem").st_uid if init else -1,
    )


def _words(path: str) -> str:
    return " ".join(kernel_files.read_short(path).split())


def _mounts(pid: int, plan: LaunchPlan) -> Tuple[Dict[str, bool], Tuple[str, ...]]:
    """The mounts of a process, and the points that have several.

    The mount points of a plan are read from its first cell and looked up in the next ones. Not with paths of a caller:
    their file systems may never answer.
    """
    is_own = plan.isolation == "namespaces" and not any(bind.as_owner for bind in (*plan.binds, *plan.upper))
    is_own = is_own and len(os.sched_getaffinity(0)) >= _FEWEST_PROCESSORS
    table = _tables.get(plan) if is_own else None
    found = None if table is None else table.read(pid)
    if found is not None:
        return found, ()
    lines = kernel_files.read(f"/proc/{pid}/mountinfo").split("\n")[:-1]
    found, covered = {}, []
    for line in lines:
        point, is_writable = _parse(line.split(" ", 3)[3])
        covered += [point] if point in found else []
        found[point] = is_writable
    if is_own and not covered and (table is None or table.is_usable):
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        _tables[plan] = MountTable(found)
    return found, tuple(covered)


def find_missing_mount(pid: int, points: Iterable[str]) -> str:
    """The first of these at which a process has no read-only mount, or "". "" if it has exited.

    All are missing if it has threads and none shows its mounts: each may have ended while it was read.
    """
    lines = _mount_lines(pid)
    if not lines and not _has_more_threads(pid):
        return ""
    is_writable = dict(_parse(line.split(" ", 3)[3]) for line in lines)
    return next((point for point in points if is_writable.get(point, True)), "")


def _mount_lines(pid: int) -> List[str]:
    """The mounts of a process, from a thread that runs: the kernel shows none of a thread that has ended.

    The first thread may end long before the others, as when a large program exits.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        try:
            return kernel_files.read(f"/proc/{pid}/task/{thread}/mountinfo").split("\n")[:-1]
        except OSError:
            continue
    return []


def _has_more_threads(pid: int) -> bool:
    """Whether a process has threads besides its first one."""
    try:
        return int(kernel_files.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[_THREADS]) > 1
    except OSError:
        return False


#: The number of threads in `stat`, counted from the field after the name.
_THREADS = 17


_tables: Dict[LaunchPlan, MountTable] = {}
_MOST_TABLES = 16
#: With fewer, reading mountinfo is faster and hardly blocks other processes.
_FEWEST_PROCESSORS = 8


@lru_cache(maxsize=512)
def _parse(rest: str) -> Tuple[str, bool]:
    """Mount point, and whether it is writable, from a line without its numbers, which is the same for all cells."""
    fields = rest.split(" ")  # spaces in paths are escaped
    # The options of the mount, and, last, those of its file system.
    return _unescape(fields[1]), ",ro," not in f",{fields[2]},{fields[-1]},"


def _unescape(text: str) -> str:
    """Decode octal escapes without a codec, which would be imported from files that may be hidden here."""
    if "\\" not in text:
        return text
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def problems(facts: Facts, expected: Expected) -> List[str]:
    """All deviations. The guest starts only if the list is empty. Pure."""
    found = _privilege_problems(facts, expected)
    if facts.descriptors != expected.descriptors:
        found.append(f"{len(facts.descriptors)} descriptors instead of {len(expected.descriptors)}, or different ones")
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
    found += [
        f"{name} is {facts.status.get(name)!r}"
        for name in ("Uid", "Gid")
        if set(facts.status.get(name, "").split()) != {str(expected.host_id)}
    ]
    # The /proc files of an undumpable process belong to the namespace's root. Proves nothing if that is the guest.
    if facts.init_owner == expected.host_id and expected.plan.uid != 0:
        found.append("init is dumpable")
    for name, text, inside in (
        ("user", facts.uid_map, expected.plan.uid),
        ("group", facts.gid_map, expected.plan.gid),
    ):
        words = text.split()
        if len(words) != 3 or words[0] != str(inside) or words[2] != "1":
            found.append(f"the {name} map is {text!r}")
    return found


def _mount_problems(facts: Facts, plan: LaunchPlan) -> List[str]:
    writable = {bind.target for bind in plan.binds if bind.writable}
    writable |= {path for path, _ in plan.scratch_dirs}
    writable |= {TERMINALS} if plan.terminals else set()
    writable |= {"/"} if plan.layers else set()
    readable = {bind.target for bind in plan.binds} | ({"/", "/dev"} if plan.layers else {"/"})
    found = [f"nothing is mounted at {point}" for point in sorted((readable | writable) - set(facts.mounts))]
    own = {path for path, _ in plan.scratch_dirs} & {bind.target for bind in plan.binds}
    for point in facts.covered:
        if point not in own and not _is_below(point, readable | writable | {"/proc"}):
            found.append(f"a mount at {point} is covered by another")
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
    """A recursive bind shows the mounts below it as further mounts."""
    return any(target != "/" and point.startswith(target + "/") for target in targets)
