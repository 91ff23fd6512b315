"""The guest's root: a sealed copy of what all guests of a plan share, with what is one guest's own put on top.

`lay_out` makes the original, in the manager's workshop; `build` is the guest's part of the recipe.
"""

from __future__ import annotations

import os
import posixpath
import stat
import struct

from ..failure import step
from ..linux import mounts
from ..linux.call_list import CallList, Value
from ..linux.mounts import AT_FDCWD, MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID
from ..plan import LaunchPlan, is_below, is_shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sequence, Tuple

#: Parts of /proc that describe the host rather than the guest.
MASKED_PROC = (
    "cmdline",
    "keys",
    "key-users",
    "kcore",
    "timer_list",
    "sched_debug",
    "sysrq-trigger",
    "modules",
    "latency_stats",
    "locks",  # of files that the guest cannot see, held by whoever
)

#: Where terminals are. How many there may be: all of the host share one number of them.
TERMINALS = "/dev/pts"
_MOST_TERMINALS = 64

_ENOENT, _EBADF, _EEXIST = 2, 9, 17

#: Names in the old root, for as long as there is one.
_SCRATCH, _ROOT = "/tmp", b"/tmp/root"


# ---- the original ----


def enter_new_tmpfs(place: str) -> None:
    with step("mount root", "tmpfs"):
        mounts.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=2k,mode=0755")
        os.chdir(place)


def lay_out(plan: LaunchPlan, trees: Sequence[int], attached: Sequence[Tuple[str, bool]]) -> None:
    """What guests share, in the working directory, with empty places for what each of them adds to its copy."""
    with step("make places"):
        terminals = (_inside(TERMINALS),) if plan.terminals else ()
        for path in ("run", "proc", *terminals, *(_inside(path) for path, _ in plan.scratch_dirs)):
            os.makedirs(path, mode=0o755, exist_ok=True)
    shared = [bind for bind in plan.binds if is_shared(bind, plan)]
    with step("attach paths"):
        for bind, tree in zip(shared, trees):  # noqa: B905  # `strict` came after Python 3.9
            _make_place(bind.target, stat.S_ISDIR(os.fstat(tree).st_mode))
            mounts.attach_tree(tree, _inside(bind.target))
    with step("write files"):
        for path, content in plan.files:
            _write_file(path, content)
        for path, target in plan.symlinks:
            _make_parents(path)
            os.symlink(target, _inside(path))
    with step("make places"):
        taken = [bind.target for bind in plan.binds] + [path for path, _ in plan.scratch_dirs]
        for path, is_directory in attached:
            if not any(is_below(path, other) and path != other for other in taken):
                _make_place(path, is_directory)


def _inside(path: str) -> str:
    return path.lstrip("/") or "."


def _make_parents(path: str) -> None:
    os.makedirs(_inside(os.path.dirname(path)), mode=0o755, exist_ok=True)


def _make_place(target: str, is_directory: bool) -> None:
    inside = _inside(target)
    if os.path.lexists(inside):
        return
    _make_parents(target)
    if is_directory:
        os.mkdir(inside)
    else:
        os.close(os.open(inside, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _write_file(path: str, content: str) -> None:
    _make_parents(path)
    descriptor = os.open(_inside(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


# ---- the guest's copy ----


def build(calls: CallList, plan: LaunchPlan, trees: Sequence[Value], attached: Sequence[Tuple[str, bool]]) -> None:
    """Moves into the copy, the first of the trees; afterwards the host's files have no name in here."""
    calls.part("make mounts private", "/")
    mounts.make_private(calls)
    _mount_scratch(calls, plan)
    calls.part("mount root", "copy")
    calls.call("mkdirat", AT_FDCWD, _ROOT, 0o700)
    mounts.attach(calls, trees[0], AT_FDCWD, os.fsdecode(_ROOT))
    calls.call("chdir", _ROOT)
    _show_scratch(calls, plan)
    for tree, (target, is_directory) in zip(trees[1:], attached):  # noqa: B905  # `strict` came after Python 3.9
        _attach(calls, plan, tree, target, is_directory)
    _mount_proc(calls)
    if plan.terminals:
        _mount_terminals(calls)
    calls.part("pivot root", "/")
    mounts.pivot_into_working_directory(calls)


def _mount_scratch(calls: CallList, plan: LaunchPlan) -> None:
    """One sized tmpfs holds everything that the guest may write, so that one number bounds it all.

    As a whole it loses its name with the old root, below which it is; the parts keep it alive. Taking down mounts waits
    for every processor to have noticed: once is enough.
    """
    calls.part("mount scratch")
    calls.call("umask", 0)
    options = f"size={plan.scratch_bytes},nr_inodes={plan.scratch_inodes},mode=0755"
    mounts.add(calls, "tmpfs", _SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)


def _show_scratch(calls: CallList, plan: LaunchPlan) -> None:
    calls.part("mount scratch")
    for number, (path, mode) in enumerate(plan.scratch_dirs):
        store = f"{_SCRATCH}/{number}"
        calls.call("mkdirat", AT_FDCWD, store.encode(), 0o700)
        calls.call("fchmodat", AT_FDCWD, store.encode(), mode)
        mounts.add(calls, store, _inside(path), None, MS_BIND)


def _attach(calls: CallList, plan: LaunchPlan, tree: Value, target: str, is_directory: bool) -> None:
    """No link is followed on the way: what a guest left in a host directory must not lead the next one's mounts."""
    calls.part("attach paths", target)
    for place in _missing(plan, target):
        parent = _open_parent(calls, place)
        _make_in_list(calls, parent, place, is_directory or place != target)
        calls.call("close", parent)
    parent = _open_parent(calls, target)
    mounts.attach(calls, tree, parent, posixpath.basename(target))
    calls.call("close", parent)


def _missing(plan: LaunchPlan, target: str) -> Iterator[str]:
    """What may have to be made first: everything below the scratch directory or host path that it lies in."""
    others = [path for path, _ in plan.scratch_dirs] + [bind.target for bind in plan.binds]
    # What takes a scratch directory's own place (/work, usually) finds it there.
    covering = max((path for path in others if is_below(target, path) and path != target), key=len, default=None)
    if covering is None:
        return
    place = covering.rstrip("/")
    for name in target[len(place) :].strip("/").split("/"):
        place += "/" + name
        yield place


def _open_parent(calls: CallList, path: str) -> Value:
    parent = posixpath.dirname(path).lstrip("/") or "."
    how = struct.pack("=QQQ", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, mounts.RESOLVE_PLAINLY_BELOW)
    return calls.call("openat2", AT_FDCWD, os.fsencode(parent), how, 24)


def _make_in_list(calls: CallList, parent: Value, path: str, is_directory: bool) -> None:
    name = os.fsencode(posixpath.basename(path))
    if is_directory:
        calls.call("mkdirat", parent, name, 0o755, tolerated=_EEXIST)
        return
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    made = calls.call("openat", parent, name, flags, 0o600, tolerated=_EEXIST)
    calls.call("close", made, tolerated=_EBADF)


def _mount_terminals(calls: CallList) -> None:
    """An instance of its own: no terminal of anybody else's has a name in here."""
    calls.part("mount terminals")
    options = f"newinstance,ptmxmode=0666,mode=0620,max={_MOST_TERMINALS}"
    mounts.add(calls, "devpts", _inside(TERMINALS), "devpts", MS_NOSUID | MS_NOEXEC, options)


def _mount_proc(calls: CallList) -> None:
    """The guest's own: it shows the processes of its pid namespace, and of the host what cannot be left out."""
    calls.part("mount proc")
    mounts.add(calls, "proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in MASKED_PROC:
        mounts.add(calls, "dev/null", f"proc/{name}", None, MS_BIND, tolerated=_ENOENT)
    random = "proc/sys/kernel/random"
    mounts.add(calls, f"{random}/uuid", f"{random}/boot_id", None, MS_BIND, tolerated=_ENOENT)
