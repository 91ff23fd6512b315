"""The guest's root: built on a tmpfs from trees that were opened outside, then pivoted into."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from contextlib import contextmanager
from typing import Callable, Iterator, Optional, Sequence, Tuple

from ..failure import CageError, step
from ..plan import Bind, LaunchPlan
from .namespaces import CLONE_NEWNS
from .syscalls import call

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE, MS_SLAVE = 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
_SEALED = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
_RESOLVE_NO_SYMLINKS, _RESOLVE_NO_MAGICLINKS = 4, 2

#: Shown at the same name in the guest's /dev; nothing else is there.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

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
)


def mount(source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[str] = None) -> None:
    def encoded(text: Optional[str]) -> Optional[bytes]:
        return None if text is None else os.fsencode(text)

    try:
        call("mount", encoded(source), encoded(target), encoded(kind), flags, encoded(data))
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def make_slave() -> None:
    """Mounts made on the host still arrive; ours never leave."""
    mount("none", "/", None, MS_REC | MS_SLAVE)


def open_without_links(path: str) -> int:
    """Opens an already resolved path for reference only; a link anywhere on the way is an error."""
    how = ctypes.create_string_buffer(
        struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    )
    return call("openat2", _AT_FDCWD, os.fsencode(path), how, 24)


Owner = Tuple[int, int]


def detach_tree(bind: Bind, id_map: Callable[[Owner], Optional[int]]) -> int:
    """A private copy of the mount tree at a host path, as a descriptor, with its permissions already reduced.

    The path was resolved when the policy was made and its identity is part of the plan: whatever stands there now
    must still be the same file or directory. `id_map` gives the user namespace in which its owner is the guest.
    """
    with step("open allowed path", bind.source):
        source = open_without_links(bind.source)
    tree = -1
    try:
        status = os.fstat(source)
        if bind.identity and f"{status.st_dev}:{status.st_ino}" != bind.identity:
            raise CageError("open allowed path", 0, f"{bind.source} is not what it was when the policy was made")
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
        with step("clone mount tree", bind.source):
            tree = call("open_tree", source, b"", flags)
        with step("restrict mount tree", bind.source):
            _set_attributes(tree, bind, id_map((status.st_uid, status.st_gid)) if bind.as_owner else None)
    except BaseException:
        if tree >= 0:
            os.close(tree)
        raise
    finally:
        os.close(source)
    return tree


def _set_attributes(tree: int, bind: Bind, idmap: Optional[int]) -> None:
    attributes = _MOUNT_ATTR_NOSUID | (0 if bind.device else _MOUNT_ATTR_NODEV)
    if not bind.writable:  # a device can be written to on a read-only mount; its times and mode cannot
        attributes |= _MOUNT_ATTR_RDONLY
    _mount_setattr(tree, attributes, 0, recursive=True)
    if idmap is None:
        return
    try:
        _mount_setattr(tree, _MOUNT_ATTR_IDMAP, idmap, recursive=False)
    except OSError:
        # A file system without id maps: what is only read stays readable as for any other user; writing would not work.
        if bind.writable:
            raise


def _mount_setattr(tree: int, attributes: int, userns: int, recursive: bool) -> None:
    request = ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, userns))
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    call("mount_setattr", tree, b"", flags, request, 32)


def build_root(plan: LaunchPlan, trees: Sequence[int]) -> None:
    """Builds the whole root under one tmpfs and moves into it; afterwards the host's files have no name in here."""
    with step("make mounts private", "/"):
        mount("none", "/", None, MS_REC | MS_PRIVATE)
    _enter_new_tmpfs("/tmp")
    with step("mount scratch"):
        _mount_scratch(plan)
    _lay_out(plan, trees)
    with step("mount proc"):
        _mount_proc()
    _pivot()
    with step("seal root", "/"):
        mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def build_root_from(template: int, plan: LaunchPlan) -> None:
    """The same, from a copy of a root that was built and sealed before; only what is the guest's own is new."""
    with step("make mounts private", "/"):
        mount("none", "/", None, MS_REC | MS_PRIVATE)
    with step("mount root", "template"):
        call("move_mount", template, b"", _AT_FDCWD, b"/tmp", _MOVE_MOUNT_F_EMPTY_PATH)
        os.chdir("/tmp")
    with step("mount scratch"):
        _mount_scratch(plan)
    with step("mount proc"):
        _mount_proc()
    _pivot()


def _enter_new_tmpfs(place: str) -> None:
    with step("mount root", "tmpfs"):
        mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=2k,mode=0755")
        os.chdir(place)


def _lay_out(plan: LaunchPlan, trees: Sequence[int]) -> None:
    """What is the same for every guest of a plan, in the working directory."""
    with step("attach paths"):
        for bind, tree in zip(plan.binds, trees):  # noqa: B905  # `strict` came after Python 3.9
            _attach(tree, bind.target)
    with step("write files"):
        for path, content in plan.files:
            _write_file(path, content)
        for path, target in plan.symlinks:
            _make_parents(path)
            os.symlink(target, _inside(path))


def _pivot() -> None:
    with step("pivot root", "/"):
        call("pivot_root", b".", b".")
        call("umount2", b".", MNT_DETACH)
        os.chdir("/")


def can_be_template(plan: LaunchPlan) -> bool:
    """Whether the root holds nothing of one caller's, and nothing that stands on what each guest gets anew."""
    places = [path + "/" for path, _ in plan.scratch_dirs]
    return not any(
        bind.as_owner or bind.writable or (bind.target + "/").startswith(tuple(places)) for bind in plan.binds
    )


class Nest:
    """A second mount namespace of this process's, for roots to be built in and copied from, out of everybody's way."""

    def __init__(self) -> None:
        with step("make nest"):
            self._own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            call("unshare", CLONE_NEWNS)
            try:
                mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=2k,mode=0755")
                self._other = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                call("setns", self._own, CLONE_NEWNS)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with step("enter nest"):
            call("setns", self._other, CLONE_NEWNS)
        try:
            yield
        finally:
            call("setns", self._own, CLONE_NEWNS)  # which also leads back to "/"

    def build(self, name: str, plan: LaunchPlan, trees: Sequence[int]) -> int:
        """A root, sealed; returns its descriptor, for `copy`."""
        with self._inside():
            os.mkdir(f"/tmp/{name}")
            _enter_new_tmpfs(f"/tmp/{name}")
            for path in ("run/scratch", "proc", *(_inside(path) for path, _ in plan.scratch_dirs)):
                os.makedirs(path, mode=0o755, exist_ok=True)
            _lay_out(plan, trees)
            template = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            with step("seal root", "/"):
                _mount_setattr(template, _SEALED, 0, recursive=False)
            return template

    def copy(self, template: int) -> int:
        """A detached copy of the whole tree."""
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
        with self._inside(), step("copy root"):
            return call("open_tree", template, b"", flags)

    def let_go(self) -> None:
        for descriptor in (self._own, self._other):
            os.close(descriptor)


def _inside(path: str) -> str:
    return path.lstrip("/") or "."


def _make_parents(path: str) -> None:
    os.makedirs(_inside(os.path.dirname(path)), mode=0o755, exist_ok=True)


def _mount_scratch(plan: LaunchPlan) -> None:
    """One sized tmpfs holds everything that the guest may write, so that one number bounds it all."""
    os.makedirs("run/scratch", mode=0o755, exist_ok=True)
    options = f"size={plan.scratch_bytes},nr_inodes={plan.scratch_inodes},mode=0755"
    mount("tmpfs", "run/scratch", "tmpfs", MS_NOSUID | MS_NODEV, options)
    for path, mode in plan.scratch_dirs:
        store = "run/scratch/" + path.strip("/").replace("/", "-")
        os.mkdir(store)
        os.chmod(store, mode)
        if not os.path.isdir(_inside(path)):
            os.makedirs(_inside(path), mode=0o755, exist_ok=True)
        mount(store, _inside(path), None, MS_BIND)
    call("umount2", b"run/scratch", MNT_DETACH)  # the parts keep it alive; as a whole it needs no name


def _attach(tree: int, target: str) -> None:
    inside = _inside(target)
    if not os.path.lexists(inside):
        _make_parents(target)
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.mkdir(inside)
        else:
            os.close(os.open(inside, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    call("move_mount", tree, b"", _AT_FDCWD, os.fsencode(inside), _MOVE_MOUNT_F_EMPTY_PATH)


def _mount_proc() -> None:
    os.makedirs("proc", mode=0o555, exist_ok=True)
    mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in MASKED_PROC:
        if os.path.exists(f"proc/{name}"):
            mount("dev/null", f"proc/{name}", None, MS_BIND)
    boot_id = "proc/sys/kernel/random/boot_id"
    if os.path.exists(boot_id):
        mount("proc/sys/kernel/random/uuid", boot_id, None, MS_BIND)


def _write_file(path: str, content: str) -> None:
    _make_parents(path)
    descriptor = os.open(_inside(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)
