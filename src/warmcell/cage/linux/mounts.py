"""Mounts, old and new interface: single ones by path, whole trees by descriptor."""

from __future__ import annotations

import os
import struct

from ..failure import CageError, step
from ..plan import Bind
from . import foreign
from .call_list import CallList, Value
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Tuple, Union

    Owner = Tuple[int, int]

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 2, 4, 8, 4096
_MS_REC, _MS_PRIVATE, _MS_SLAVE = 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
_SEALED = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8
#: Without links, and never above where it starts.
RESOLVE_PLAINLY_BELOW = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH


def mount(source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[str] = None) -> None:
    def encoded(text: Optional[str]) -> Optional[bytes]:
        return None if text is None else os.fsencode(text)

    try:
        call("mount", encoded(source), encoded(target), encoded(kind), flags, encoded(data))
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def make_slave() -> None:
    """Mounts made on the host still arrive; ours never leave."""
    mount("none", "/", None, _MS_REC | _MS_SLAVE)


def add(
    calls: CallList,
    source: Optional[str],
    target: str,
    kind: Optional[str],
    flags: int,
    data: Optional[str] = None,
    tolerated: int = 0,
) -> None:
    """`mount`, in a list."""
    words = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    calls.call("mount", words[0], words[1], words[2], flags, words[3], tolerated=tolerated)


def make_private(calls: CallList) -> None:
    """Mounts neither arrive nor leave."""
    add(calls, "none", "/", None, _MS_REC | _MS_PRIVATE)


def pivot_into_working_directory(calls: CallList) -> None:
    """It becomes the root. The old root, stacked on it for a moment, loses its name and with it everything below."""
    calls.call("pivot_root", b".", b".")
    calls.call("umount2", b".", MNT_DETACH)
    calls.call("chdir", b"/")


def attach(calls: CallList, tree: Value, directory: Union[int, Value], name: str) -> None:
    """Never through a link: the last part of the name is not followed."""
    calls.call("move_mount", tree, b"", directory, os.fsencode(name), _MOVE_MOUNT_F_EMPTY_PATH)


def is_full(place: Union[str, int]) -> bool:
    """Whether the file system there has not a block left, or not a name."""
    status = os.statvfs(place)
    return status.f_bfree == 0 or status.f_ffree == 0


def open_without_links(path: str) -> int:
    """Opens an already resolved path for reference only; a link anywhere on the way is an error."""
    how = foreign.create_string_buffer(
        struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    )
    return call("openat2", AT_FDCWD, os.fsencode(path), how, 24)


def detached_tree(bind: Bind, id_map: Callable[[Owner], Optional[int]]) -> int:
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
        with step("clone mount tree", bind.source):
            tree = copy_tree(source)
        with step("restrict mount tree", bind.source):
            _restrict(tree, bind, id_map((status.st_uid, status.st_gid)) if bind.as_owner else None)
    except BaseException:
        if tree >= 0:
            os.close(tree)
        raise
    finally:
        os.close(source)
    return tree


def copy_tree(source: int) -> int:
    """A detached copy of the tree at a descriptor, with all that is mounted below."""
    return call("open_tree", source, b"", _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE)


def attach_tree(tree: int, target: str) -> None:
    call("move_mount", tree, b"", AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def seal(tree: int) -> None:
    """Read-only, though not what is mounted below."""
    _set_attributes(tree, _SEALED, 0, recursive=False)


def _restrict(tree: int, bind: Bind, idmap: Optional[int]) -> None:
    attributes = _MOUNT_ATTR_NOSUID | (0 if bind.device else _MOUNT_ATTR_NODEV)
    if not bind.writable:  # a device can be written to on a read-only mount; its times and mode cannot
        attributes |= _MOUNT_ATTR_RDONLY
    _set_attributes(tree, attributes, 0, recursive=True)
    if idmap is None:
        return
    try:
        _set_attributes(tree, _MOUNT_ATTR_IDMAP, idmap, recursive=False)
    except OSError:
        # A file system without id maps: what is only read stays readable as for any other user; writing would not work.
        if bind.writable:
            raise


def _set_attributes(tree: int, attributes: int, userns: int, recursive: bool) -> None:
    request = foreign.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, userns))
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    call("mount_setattr", tree, b"", flags, request, 32)
