"""The guest's root: a sealed copy of a root that all guests of a plan share, with the guest's own mounts on top.

`lay_out` builds the original, in the manager's workshop; `build` is the guest's part of the recipe. With an image, the
same is built and then moved into the image's root (`_move_into_image`).
"""

from __future__ import annotations

import mmap
import os
import posixpath
import stat

from ..failure import step
from ..linux import mounts
from ..linux.call_list import CallList, Value
from ..linux.descriptors import closing_fd
from ..linux.mounts import AT_FDCWD, MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT
from ..plan import LaunchPlan, is_below, is_shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Sequence, Tuple

#: Parts of /proc that describe the host rather than the guest. `locks` lists files and processes that it cannot see.
MASKED_PROC = tuple(
    """
    cmdline keys key-users kcore timer_list sched_debug sysrq-trigger modules latency_stats locks
    """.split()
)

#: Where terminals are, and how many a cage may have of the host's limited number.
TERMINALS = "/dev/pts"
_MOST_TERMINALS = 64

_ENOENT, _EBADF, _EEXIST = 2, 9, 17

#: Paths in the old root, until it is unmounted.
_SCRATCH, _ROOT, _BOOT_ID = "/tmp", b"/tmp/root", "/tmp/boot_id"
_UUID_BYTES = 37  # with the newline


# ---- the original ----


def enter_new_tmpfs(place: str) -> None:
    with step("mount root", "tmpfs"):
        mounts.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=2k,mode=0755")
        os.chdir(place)


def lay_out(plan: LaunchPlan, trees: Sequence[int], attached: Sequence[Tuple[str, bool]]) -> None:
    """Build the shared root in the working directory, with mount points for what each guest mounts on its copy."""
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
        for path, content in () if plan.layers else plan.files:  # an image gets them in its own root
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
    with closing_fd(os.open(_inside(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)) as descriptor:
        os.write(descriptor, content.encode())


# ---- the guest's copy ----


def build(calls: CallList, plan: LaunchPlan, trees: Sequence[Value], attached: Sequence[Tuple[str, bool]]) -> None:
    """Mount everything on the copy, which is the first of the trees, and pivot into it."""
    calls.begin_step("make mounts private", "/")
    mounts.make_private(calls)
    _mount_scratch(calls, plan)
    calls.begin_step("mount root", "copy")
    calls.call("mkdirat", AT_FDCWD, _ROOT, 0o700)
    mounts.attach(calls, trees[0], AT_FDCWD, os.fsdecode(_ROOT))
    calls.call("chdir", _ROOT)
    _show_scratch(calls, plan)
    image = trees[1 + len(attached) :]
    for tree, (target, is_directory) in zip(trees[1:], attached):  # noqa: B905  # `strict` came after Python 3.9
        _attach(calls, plan, tree, target, is_directory)
    _mount_proc(calls)
    if plan.terminals:
        _mount_terminals(calls)
    if image:
        _move_into_image(calls, plan, image, attached)
    calls.begin_step("pivot root", "/")
    mounts.pivot_into_working_directory(calls)


def _mount_scratch(calls: CallList, plan: LaunchPlan) -> None:
    """Mount the one sized tmpfs that holds everything the guest may write, so that one number limits it.

    It is mounted below the old root and disappears with it; bind mounts of its directories keep it alive. Unmounting it
    separately would wait for every processor once more.
    """
    calls.begin_step("mount scratch")
    calls.call("umask", 0)
    # Plus a page and an inode for the file that hides the host's boot id.
    options = f"size={plan.scratch_bytes + mmap.PAGESIZE},nr_inodes={plan.scratch_inodes + 1},mode=0755"
    mounts.add(calls, "tmpfs", _SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)


def _show_scratch(calls: CallList, plan: LaunchPlan) -> None:
    calls.begin_step("mount scratch")
    for number, (path, mode) in enumerate(plan.scratch_dirs):
        store = f"{_SCRATCH}/{number}"
        calls.call("mkdirat", AT_FDCWD, store.encode(), 0o700)
        calls.call("fchmodat", AT_FDCWD, store.encode(), mode)
        mounts.add(calls, store, _inside(path), None, MS_BIND)


def _attach(calls: CallList, plan: LaunchPlan, tree: Value, target: str, is_directory: bool) -> None:
    """Mount a tree without following links, which an earlier guest may have left in a host directory."""
    calls.begin_step("attach paths", target)
    for place in _missing(plan, target):
        parent = mounts.open_parent(calls, place)
        _make_in_list(calls, parent, place, is_directory or place != target)
        calls.call("close", parent)
    parent = mounts.open_parent(calls, target)
    mounts.attach(calls, tree, parent, posixpath.basename(target))
    calls.call("close", parent)


def _missing(plan: LaunchPlan, target: str) -> Iterator[str]:
    """The directories that may be missing: those below the scratch directory or host path that contains the target."""
    others = [path for path, _ in plan.scratch_dirs] + [bind.target for bind in plan.binds]
    # A path that replaces a scratch directory itself, usually /work, is not missing.
    covering = max((path for path in others if is_below(target, path) and path != target), key=len, default=None)
    if covering is None:
        return
    place = covering.rstrip("/")
    for name in target[len(place) :].strip("/").split("/"):
        place += "/" + name
        yield place


def _make_in_list(calls: CallList, parent: Value, path: str, is_directory: bool) -> None:
    name = os.fsencode(posixpath.basename(path))
    if is_directory:
        calls.call("mkdirat", parent, name, 0o755, allowed_errno=_EEXIST)
        return
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    made = calls.call("openat", parent, name, flags, 0o600, allowed_errno=_EEXIST)
    calls.call("close", made, allowed_errno=_EBADF)


def _mount_terminals(calls: CallList) -> None:
    """Mount a new devpts instance, in which no terminal of the host is visible."""
    calls.begin_step("mount terminals")
    options = f"newinstance,ptmxmode=0666,mode=0620,max={_MOST_TERMINALS}"
    mounts.add(calls, "devpts", _inside(TERMINALS), "devpts", MS_NOSUID | MS_NOEXEC, options)


def _mount_proc(calls: CallList) -> None:
    """Mount the /proc of the guest's pid namespace, and mask the parts that describe the host."""
    calls.begin_step("mount proc")
    mounts.add(calls, "proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in MASKED_PROC:
        mounts.add(calls, "dev/null", f"proc/{name}", None, MS_BIND, allowed_errno=_ENOENT)
    _hide_boot_id(calls)


def seal_proc(calls: CallList, keep_tasks: bool, keepers: Sequence[int]) -> None:
    """Make /proc read-only for images, whose Landlock rule allows writing everywhere.

    With `keep_tasks`, only /proc/sys and the entries of the keepers: guests with a GPU must be able to name threads.
    """
    calls.begin_step("seal proc")
    if not keep_tasks:
        _make_read_only(calls, "/proc")
        return
    for place in ("/proc/sys", *(f"/proc/{pid}" for pid in keepers)):
        mounts.add(calls, place, place, None, MS_BIND | MS_REC)
        _make_read_only(calls, place)


def _make_read_only(calls: CallList, place: str) -> None:
    mounts.add(calls, None, place, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _hide_boot_id(calls: CallList) -> None:
    """Show a random boot id that stays the same: programs interpret a new one as a reboot."""
    uuid = calls.buffer(bytes(_UUID_BYTES))
    source = calls.call("openat", AT_FDCWD, b"proc/sys/kernel/random/uuid", os.O_RDONLY | os.O_CLOEXEC, 0)
    calls.call("read", source, uuid, _UUID_BYTES, expected=_UUID_BYTES)
    calls.call("close", source)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    file = calls.call("openat", AT_FDCWD, _BOOT_ID.encode(), flags, 0o444)
    calls.call("write", file, uuid, _UUID_BYTES, expected=_UUID_BYTES)
    calls.call("close", file)
    target = "proc/sys/kernel/random/boot_id"
    mounts.add(calls, _BOOT_ID, target, None, MS_BIND)
    mounts.add(calls, None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


# ---- the root of an image: its layers below a writable one, with the cage's own mounts moved on top ----
#
# The image is not trusted: its links are never followed, and mount points are opened below the image's root.

#: The directories of the overlay, on the scratch.
_UPPER, _WORK, _IMAGE = "upper", "work", "image"
#: The mount point of an upper layer on the host, which contains the directories "upper" and "work".
_DISK = "disk"


def _move_into_image(
    calls: CallList, plan: LaunchPlan, trees: Sequence[Value], attached: Sequence[Tuple[str, bool]]
) -> None:
    """Mount the image, make it the working directory, and move the cage's own mounts into it.

    The trees are the layers, and then the upper layer if it is on the host.
    """
    _mount_image(calls, trees[: len(plan.layers)], trees[len(plan.layers) :])
    for path, content in plan.files:
        _write_into_image(calls, path, content)
    for place, is_directory in _outermost(plan, attached).items():
        _move_place(calls, place, is_directory)


def _mount_image(calls: CallList, layers: Sequence[Value], upper: Sequence[Value]) -> None:
    """Mount the overlay, with names relative to the scratch: mount options are limited to one page."""
    calls.begin_step("mount image")
    calls.call("chdir", _SCRATCH.encode())
    names = [f"l{number}" for number in range(len(layers))]
    for name, tree in zip(names, layers):  # noqa: B905  # `strict` came after Python 3.9
        calls.call("mkdirat", AT_FDCWD, name.encode(), 0o700)
        mounts.attach(calls, tree, AT_FDCWD, name)
    for name in (_IMAGE, _DISK) if upper else (_IMAGE, _UPPER, _WORK):
        calls.call("mkdirat", AT_FDCWD, name.encode(), 0o755)
    for tree in upper:
        mounts.attach(calls, tree, AT_FDCWD, _DISK)
    place = f"{_DISK}/" if upper else ""
    options = f"lowerdir={':'.join(reversed(names))},upperdir={place}{_UPPER},workdir={place}{_WORK},userxattr"
    mounts.add(calls, "overlay", _IMAGE, "overlay", MS_NOSUID | MS_NODEV, options)
    calls.call("chdir", _IMAGE.encode())


def _outermost(plan: LaunchPlan, attached: Sequence[Tuple[str, bool]]) -> Dict[str, bool]:
    """The outermost places, and whether each is a directory. Places inside them move with them."""
    places = {"/dev": True, "/proc": True, **{path: True for path, _ in plan.scratch_dirs}, **dict(attached)}
    inner = {path for path in places for other in places if path != other and is_below(path, other)}
    return {path: is_directory for path, is_directory in places.items() if path not in inner}


def _move_place(calls: CallList, place: str, is_directory: bool) -> None:
    calls.begin_step("move into image", place)
    tree = mounts.copy_in_list(calls, os.fsdecode(_ROOT) + place)
    _make_directories(calls, place if is_directory else posixpath.dirname(place))
    parent = mounts.open_parent(calls, place)
    if not is_directory:
        _make_in_list(calls, parent, place, is_directory)
    mounts.attach(calls, tree, parent, posixpath.basename(place))
    calls.call("close", parent)
    calls.call("close", tree)


def _write_into_image(calls: CallList, path: str, content: str) -> None:
    """Write a file, replacing the image's."""
    calls.begin_step("write files", path)
    data, name = content.encode(), os.fsencode(posixpath.basename(path))
    _make_directories(calls, posixpath.dirname(path))
    parent = mounts.open_parent(calls, path)
    calls.call("unlinkat", parent, name, 0, allowed_errno=_ENOENT)
    file = calls.call("openat", parent, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    if data:
        calls.call("write", file, data, len(data), expected=len(data))
    calls.call("close", file)
    calls.call("close", parent)


def _make_directories(calls: CallList, path: str) -> None:
    """Create the directory and its parents if the image lacks them."""
    if path == "/":
        return
    _make_directories(calls, posixpath.dirname(path))
    parent = mounts.open_parent(calls, path)
    _make_in_list(calls, parent, path, is_directory=True)
    calls.call("close", parent)
