"""The journal of a commit: applies it to the host's directory, and undoes or completes an interrupted one.

A commit survives a kill at any point. First the journal lists every temporary file that will be created ("staging"): an
interrupted commit is undone by removing them. When all are on the disk, the journal is replaced by one in the state
"applying": an interrupted commit is completed at the next start. Each operation is one atomic rename, and idempotent.

Paths are opened beneath the directory without following links, because the guest chose the names, and a directory may
have been replaced by a link. A file is exchanged with the prepared one and checked afterwards: an unexpected one is
exchanged back, so that a concurrent change on the host is not lost.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from warmcell.changes.content import exchange, rename_to_free_name, sync_filesystem
from warmcell.core.errors import BackendUnavailable, InvalidRequest, PathTraversal, SandboxError
from warmcell.core.light import closing_fd
from warmcell.lifetime.own_modes import grant_owner, make_directory
from warmcell.workspace.errors import WorkspaceError
from warmcell.workspace.names import Parts
from warmcell.workspace.remove import remove_tree
from warmcell.workspace.root import OPEN_DIRECTORY, OPEN_FILE, Root
from warmcell.workspace.untrusted_files import open_regular, parse_json
from warmcell.workspace.walk import walk

_NAME = "journal.json"
Do = Literal["put", "delete", "delete_tree", "mode", "make_directory"]
_DO = get_args(Do)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `temporary` is in the target's directory, or in its nearest parent that exists.

    `expected` identifies the file that must be at the path: device, inode, size and modification time; None: no file.
    `staged` identifies the prepared file. `newest_ns`: no file of a deleted directory may have changed after this.
    `follows`: it belongs to the change of the operation before it, and is not applied if that one was refused.
    `modes_above`: those of the last directories above it, for the ones that have to be created.
    """

    do: Do
    parts: Parts
    temporary: Parts = ()
    expected: tuple[int, int, int, int] | None = None
    staged: tuple[int, int] | None = None
    mode: int = 0
    newest_ns: int = 0
    follows: bool = False
    modes_above: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Journal:
    """`lower` is the host's directory, `identity` its device and inode."""

    state: Literal["staging", "applying"]
    lower: str
    identity: tuple[int, int]
    operations: tuple[Operation, ...]


def write_journal(directory: str, journal: Journal) -> None:
    """Replace the journal in `directory` and sync it to the disk."""
    path = os.path.join(directory, _NAME)
    with open(os.open(f"{path}.new", _CREATE, 0o600), "wb") as file:
        grant_owner(file.fileno())
        file.write(json.dumps(asdict(journal)).encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
    sync_directory(directory)


def has_journal(directory: str) -> bool:
    return os.path.lexists(os.path.join(directory, _NAME))


def read_journal(directory: str) -> Journal | None:
    """None if there is no journal. `BackendUnavailable` if it is damaged."""
    if not has_journal(directory):
        return None
    path = os.path.join(directory, _NAME)
    with open(open_regular(path, "journal"), "rb") as file:
        content = file.read()
    try:
        return _journal(parse_json(content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "check the directory that it names, and remove the journal"
        raise BackendUnavailable(f"the journal of a commit, {path}, is damaged: {error}", hint=hint) from None


def _journal(data: dict[str, Any]) -> Journal:
    if data["state"] not in ("staging", "applying") or not isinstance(data["lower"], str):
        raise ValueError("unknown state or directory")
    operations = tuple(_operation(item) for item in data["operations"])
    return Journal(data["state"], data["lower"], tuple(data["identity"]), operations)


def _operation(item: dict[str, object]) -> Operation:
    lists = {name: tuple(value) for name, value in item.items() if isinstance(value, list)}
    operation = Operation(**{**item, **lists})  # type: ignore[arg-type]
    paths = (operation.parts, operation.temporary)
    has_paths = all(isinstance(parts, tuple) and set(map(type, parts)) <= {str} for parts in paths)
    if operation.do not in _DO or not has_paths:
        raise ValueError(f"unknown operation {str(operation.do)[:100]!r}")
    return operation


def remove_journal(directory: str) -> None:
    os.unlink(os.path.join(directory, _NAME))
    sync_directory(directory)


def sync_directory(path: str) -> None:
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


#: With more files than this, one sync of the file system takes less time than a sync of each.
FEW_FILES = 16
CHANGED = "changed on the host meanwhile"
TAKEN = "a file of that name was created on the host meanwhile"


class Refused(Exception):
    """The operation was not applied; the host's file is unchanged."""


def apply(root: Root, operation: Operation) -> None:
    """Apply one operation, unless it was applied before. Raises `Refused`."""
    try:
        _ACTIONS[operation.do](root, operation)
    except FileExistsError:
        _drop(root, operation)
        raise Refused(TAKEN) from None
    except (OSError, PathTraversal, WorkspaceError) as error:
        _drop(root, operation)
        raise Refused(_reason(error)) from None


def apply_change(root: Root, operations: Sequence[Operation]) -> None:
    """Apply the operations of one change. If one is refused, those after it are not applied. Raises `Refused`."""
    try:
        for operation in operations:
            apply(root, operation)
    except Refused:
        undo(root, operations)
        raise


def undo(root: Root, operations: Sequence[Operation]) -> None:
    """Remove the prepared files that were not put in place."""
    for operation in operations:
        _drop(root, operation)


def sync(root: Root, operations: tuple[Operation, ...]) -> None:
    """Sync the renames to the disk. The journal must not be removed before."""
    directories = {parts[:-1] for operation in operations for parts in (operation.parts, operation.temporary) if parts}
    if len(directories) > FEW_FILES:
        sync_filesystem(root.fd)
        return
    for parts in directories:
        with suppress(PathTraversal, WorkspaceError), root.directory(parts) as fd:  # it may be gone again
            os.fsync(fd)


def recover(directory: str) -> bool:
    """Undo or complete an interrupted commit, if there is one. False if its directory is missing: the journal stays."""
    found = read_journal(directory)
    if found is None:
        return True
    try:
        root = Root(found.lower)
    except InvalidRequest:
        return False
    with root:
        state = os.fstat(root.fd)
        if (state.st_dev, state.st_ino) != found.identity:
            return False
        _complete(root, found)
    remove_journal(directory)
    return True


def _complete(root: Root, found: Journal) -> None:
    if found.state == "staging":
        undo(root, found.operations)
        return
    for operations in _changes(found.operations):
        with suppress(Refused):  # the host's own change stays
            apply_change(root, operations)
    sync(root, found.operations)


def _changes(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations of each change."""
    changes: list[list[Operation]] = []
    for operation in operations:
        if operation.follows and changes:
            changes[-1].append(operation)
        else:
            changes.append([operation])
    return changes


def _put(root: Root, operation: Operation) -> None:
    with root.parent(operation.temporary) as (from_fd, temporary):
        is_ready = _identity(from_fd, temporary) == operation.staged
        _make_parents(root, operation)
        with root.parent(operation.parts) as (to_fd, name):
            is_done = _identity(to_fd, name) == operation.staged
            if is_done and operation.expected is not None:  # exchanged, but not yet checked
                _check_old(from_fd, temporary, to_fd, name, operation)
            elif is_ready and not is_done:
                _replace(from_fd, temporary, to_fd, name, operation)
            elif not is_done:  # refused before, or the host has removed the prepared or the committed file
                raise Refused(CHANGED)


def _replace(from_fd: int, temporary: str, to_fd: int, name: str, operation: Operation) -> None:
    if operation.expected is None:
        rename_to_free_name(from_fd, temporary, to_fd, name)
    elif _facts(to_fd, name) != operation.expected:
        os.unlink(temporary, dir_fd=from_fd)
        raise Refused(CHANGED)
    elif exchange(from_fd, temporary, to_fd, name):
        _check_old(from_fd, temporary, to_fd, name, operation)
    else:
        os.rename(temporary, name, src_dir_fd=from_fd, dst_dir_fd=to_fd)


def _check_old(from_fd: int, temporary: str, to_fd: int, name: str, operation: Operation) -> None:
    """Remove the replaced file, or exchange it back if it is not the expected one."""
    found = _facts(from_fd, temporary)
    if found is not None and found != operation.expected:
        exchange(from_fd, temporary, to_fd, name)
        if _identity(from_fd, temporary) != operation.staged:  # replaced on the host once more: keep the latest
            exchange(from_fd, temporary, to_fd, name)
        os.unlink(temporary, dir_fd=from_fd)
        raise Refused(CHANGED)
    if found is not None:
        os.unlink(temporary, dir_fd=from_fd)


def _delete(root: Root, operation: Operation) -> None:
    with root.parent(operation.parts) as (dir_fd, name):
        if operation.temporary[:-1] != operation.parts[:-1]:
            raise Refused("its directory changed")
        temporary = operation.temporary[-1]
        # A tree of this name was compared already, and may be removed in part.
        condemned = f"{temporary}-removed"
        if operation.do == "delete_tree" and _facts(dir_fd, condemned) is not None:
            remove_tree(dir_fd, condemned)
            return
        if _facts(dir_fd, temporary) is None:
            if _facts(dir_fd, name) is None:
                return
            rename_to_free_name(dir_fd, name, dir_fd, temporary)
        if not _is_unchanged(root, dir_fd, temporary, operation):
            rename_to_free_name(dir_fd, temporary, dir_fd, name)
            raise Refused(CHANGED)
        if operation.do == "delete":
            os.unlink(temporary, dir_fd=dir_fd)
        else:
            rename_to_free_name(dir_fd, temporary, dir_fd, condemned)
            remove_tree(dir_fd, condemned)


def _is_unchanged(root: Root, dir_fd: int, name: str, operation: Operation) -> bool:
    if operation.do == "delete":
        return _facts(dir_fd, name) == operation.expected
    if operation.expected is None or _identity(dir_fd, name) != operation.expected[:2]:
        return False
    return all(entry.state.st_ctime_ns <= operation.newest_ns for entry in walk(root, operation.temporary))


def _set_mode(root: Root, operation: Operation) -> None:
    with root.parent(operation.parts) as (dir_fd, name):
        is_directory = stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
        with closing_fd(os.open(name, OPEN_DIRECTORY if is_directory else OPEN_FILE, dir_fd=dir_fd)) as fd:
            state = os.fstat(fd)
            if operation.expected is not None and (state.st_dev, state.st_ino) != operation.expected[:2]:
                raise Refused(CHANGED)
            os.fchmod(fd, operation.mode)


def _make_directory(root: Root, operation: Operation) -> None:
    _make_parents(root, operation)
    with root.parent(operation.parts) as (dir_fd, name), suppress(FileExistsError):
        make_directory(name, operation.mode, dir_fd=dir_fd)


_ACTIONS = {
    "put": _put,
    "delete": _delete,
    "delete_tree": _delete,
    "mode": _set_mode,
    "make_directory": _make_directory,
}


def _make_parents(root: Root, operation: Operation) -> None:
    parts, modes = operation.parts[:-1], operation.modes_above
    modes = (*(0o755 for _ in parts[len(modes) :]), *modes)
    for count, mode in enumerate(modes, 1):
        with root.parent(parts[:count]) as (dir_fd, name), suppress(FileExistsError):
            make_directory(name, mode, dir_fd=dir_fd)


def _drop(root: Root, operation: Operation) -> None:
    """Remove a prepared file, but not a file of the host that was moved to the temporary name."""
    if operation.do != "put":
        return
    with suppress(OSError, PathTraversal, WorkspaceError), root.parent(operation.temporary) as (dir_fd, name):
        if operation.staged is None or _identity(dir_fd, name) == operation.staged:
            os.unlink(name, dir_fd=dir_fd)


def facts_of(state: os.stat_result) -> tuple[int, int, int, int]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _facts(dir_fd: int, name: str) -> tuple[int, int, int, int] | None:
    try:
        return facts_of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _identity(dir_fd: int, name: str) -> tuple[int, int] | None:
    facts = _facts(dir_fd, name)
    return None if facts is None else facts[:2]


def _reason(error: Exception) -> str:
    if isinstance(error, SandboxError):
        return error.message
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
