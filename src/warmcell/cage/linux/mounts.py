"""Mounts, with mount(2) by path and with the newer calls by descriptor of a mount tree."""

from __future__ import annotations

import os
import posixpath
import struct
import time

from ..failure import CageError, step
from ..plan import Bind
from . import fast_ctypes, fds
from .call_list import CallList, Value
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Tuple, Union

    Owner = Tuple[int, int]

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, _MS_PRIVATE, _MS_SLAVE = 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
_SEALED = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8
#: No links, and never above the starting directory.
_RESOLVE_PLAINLY_BELOW = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH


def mount(source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[str] = None) -> None:
    def encode(text: Optional[str]) -> Optional[bytes]:
        return None if text is None else os.fsencode(text)

    try:
        call("mount", encode(source), encode(target), encode(kind), flags, encode(data))
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def make_slave() -> None:
    """Let mounts of the host propagate here, but never ours to the host."""
    mount("none", "/", None, MS_REC | _MS_SLAVE)


def add(
    calls: CallList,
    source: Optional[str],
    target: str,
    kind: Optional[str],
    flags: int,
    data: Optional[str] = None,
    allowed_errno: int = 0,
) -> None:
    """Add a `mount` call to a list."""
    words = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    calls.call("mount", words[0], words[1], words[2], flags, words[3], allowed_errno=allowed_errno)


def make_private(calls: CallList) -> None:
    """Stop propagation of mounts in both directions."""
    add(calls, "none", "/", None, MS_REC | _MS_PRIVATE)


def pivot_into_working_directory(calls: CallList) -> None:
    """Make it the root. The old root, which is then mounted on top of it, is unmounted with everything below."""
    calls.call("pivot_root", b".", b".")
    calls.call("umount2", b".", MNT_DETACH)
    calls.call("chdir", b"/")


def copy_in_list(calls: CallList, path: str) -> Value:
    """Make a detached copy of the tree at a path, with all mounts below it."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return calls.call("open_tree", AT_FDCWD, os.fsencode(path), flags)


def attach(calls: CallList, tree: Value, directory: Union[int, Value], name: str) -> None:
    """Mount a tree. move_mount does not follow a link at the target."""
    calls.call("move_mount", tree, b"", directory, os.fsencode(name), _MOVE_MOUNT_F_EMPTY_PATH)


def open_parent(calls: CallList, path: str) -> Value:
    """Open the parent of a path below the working directory."""
    return open_below(calls, AT_FDCWD, posixpath.dirname(path), os.O_DIRECTORY)


def open_below(calls: CallList, directory: Union[int, Value], path: str, flags: int = 0) -> Value:
    """Open a path with O_PATH; a link in it is an error."""
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _RESOLVE_PLAINLY_BELOW)
    return calls.call("openat2", directory, os.fsencode(path.lstrip("/") or "."), how, len(how))


def is_full(place: Union[str, int]) -> bool:
    """Whether the file system has no free block or no free inode."""
    status = os.statvfs(place)
    return status.f_bfree == 0 or status.f_ffree == 0


#: Freeing as many files or bytes of a tmpfs takes longer than a fork.
_MANY_FILES, _MANY_BYTES = 10_000, 64 << 20
_CLOSES_WITHIN = 0.05


def close_file_system(place: int) -> None:
    """Close a descriptor that may be the last one of a tmpfs, in another process if freeing its files takes long."""
    status = os.fstatvfs(place)
    files, blocks = status.f_files - status.f_ffree, status.f_blocks - status.f_bfree
    pid = -1
    if files > _MANY_FILES or blocks * status.f_frsize > _MANY_BYTES:
        try:
            pid = os.fork()
        except OSError:  # no more processes: it takes long
            pass
    if pid == 0:
        try:
            fds.close_all_but(place)
            time.sleep(_CLOSES_WITHIN)  # the other process has closed it by then
        finally:
            os._exit(0)
    os.close(place)


def open_without_links(path: str, flags: int = 0) -> int:
    """Open an already resolved path with O_PATH; a link in it is an error, but with O_NOFOLLOW not at its end."""
    how = fast_ctypes.create_string_buffer(
        struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    )
    return call("openat2", AT_FDCWD, os.fsencode(path), how, 24)


def detached_tree(bind: Bind, id_map: Callable[[Owner], Optional[int]]) -> int:
    """A private copy of the mount tree at a host path, as a descriptor, with reduced permissions.

    The path was resolved when the policy was created, and must still be the file or directory that the plan identifies.
    `id_map` returns the user namespace that maps its owner to the guest.
    """
    with step("open allowed path", bind.source):
        source = open_without_links(bind.source, os.O_NOFOLLOW if bind.identity else 0)
    tree = -1
    try:
        status = os.fstat(source)
        if bind.identity and f"{status.st_dev}:{status.st_ino}" != bind.identity:
            raise CageError("open allowed path", 0, f"{bind.source} was replaced after the policy was created")
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
    """Make a detached copy of the tree at a descriptor, with all mounts below it."""
    return call("open_tree", source, b"", _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE)


def attach_tree(tree: int, target: str) -> None:
    call("move_mount", tree, b"", AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def seal(tree: int) -> None:
    """Make it read-only, but not the mounts below it."""
    _set_attributes(tree, _SEALED, 0, recursive=False)


def _restrict(tree: int, bind: Bind, idmap: Optional[int]) -> None:
    attributes = _MOUNT_ATTR_NOSUID | (0 if bind.device else _MOUNT_ATTR_NODEV)
    if not bind.writable:  # a device can be written to on a read-only mount; its times and mode cannot
        attributes |= _MOUNT_ATTR_RDONLY
    # Private: otherwise what the host mounts below the path later appears here too, without these restrictions.
    _set_attributes(tree, attributes, 0, recursive=True, propagation=_MS_PRIVATE)
    if idmap is None:
        return
    try:
        _set_attributes(tree, _MOUNT_ATTR_IDMAP, idmap, recursive=False)
    except OSError:
        # Without support for id maps: files that other users can read stay readable, but writing would fail.
        if bind.writable:
            raise


def _set_attributes(tree: int, attributes: int, userns: int, recursive: bool, propagation: int = 0) -> None:
    request = fast_ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, propagation, userns))
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    call("mount_setattr", tree, b"", flags, request, 32)
