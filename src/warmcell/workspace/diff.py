"""What changed in a workspace since it was made, by content.

Times, inode numbers and sizes can all be made to look as before: a guest sets mtime freely, and on tmpfs a write
through a mapping leaves even ctime alone. So a file of unchanged size is always read and hashed again; no shortcut is
taken.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from warmcell.core.types import MIB
from warmcell.workspace.errors import FileMissing, LimitExceeded, WrongKind
from warmcell.workspace.name_tree import NameTree
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root, explained, text_of
from warmcell.workspace.walk import EntryKind, Found, TreeLimits, open_found, walk

ChangeKind = Literal["created", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FsChange:
    """One file that was created, modified or deleted. `size` is the new one, or the old one of a deleted file.

    `entry` is "symlink" or "other" (FIFO, socket, device) for what is not a regular file; those are reported, never
    opened. Directories are not reported by themselves, as in git, except for those that are "closed": nobody but the
    guest can say what is in them.
    """

    path: str
    kind: ChangeKind
    size: int = 0
    entry: EntryKind = "file"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Enough of an entry to tell whether it is still the same. `content` is a digest, or where a link points.

    `data` is all of a small file, as long as there is room for it, so that its lines can be compared too.
    """

    entry: EntryKind
    size: int
    content: bytes
    data: bytes | None = None


#: How large a file may be whose content is kept, and all of those together. It is kept in memory.
MOST_KEPT_OF_FILE, MOST_KEPT = 256 * 1024, 8 * MIB


State = Mapping[Parts, Fingerprint]


def record(root: Root, limits: TreeLimits | None = None) -> State:
    """The state of a whole tree. Raises `LimitExceeded` when it is larger than can be hashed in reasonable time."""
    limits = limits or TreeLimits()
    state: dict[Parts, Fingerprint] = {}
    total, room = 0, MOST_KEPT
    for found in walk(root, (), limits):
        if found.kind == "directory":
            continue
        total += found.state.st_size if found.kind == "file" else 0
        if total > limits.total_bytes:
            raise _too_large(found, limits.total_bytes)
        made = _fingerprint(found, limits.total_bytes, min(room, MOST_KEPT_OF_FILE))
        room -= len(made.data or b"")
        state[found.parts] = made
    return state


def content_before(before: State, parts: Parts) -> bytes:
    """What was in a file, where that was kept. `FileMissing` where there was none."""
    name, old = text_of(parts), before.get(parts)
    if old is None:
        raise FileMissing(name, "was not there")
    if old.entry != "file":
        raise WrongKind(name, "was not a file")
    if old.data is None:
        hint = f"files of up to {MOST_KEPT_OF_FILE // 1024} kB are kept, {MOST_KEPT // MIB} MB of them at most"
        raise LimitExceeded(name, "was too large to be kept", limit=MOST_KEPT_OF_FILE, hint=hint)
    return old.data


def changes_since(before: State, root: Root, limits: TreeLimits | None = None) -> list[FsChange]:
    """What differs now, sorted by path. New files are not read at all, so their size costs nothing."""
    limits = limits or TreeLimits()
    changes, unseen, closed = [], dict(before), NameTree[bool]()
    for found in walk(root, (), limits):
        if found.kind == "directory":
            continue
        old = unseen.pop(found.parts, None)
        if old is None:
            changes.append(_change(found, "created"))
        elif _differs(old, found, limits.total_bytes):
            changes.append(_change(found, "modified"))
        if found.kind == "closed":
            *_, node = closed.path_to(found.parts)
            node.content = True
    for parts, old in unseen.items():
        # What was in a directory that is closed now may still be there: the directory itself has been told.
        if not any(closed.known_on_way(parts)):
            changes.append(FsChange(text_of(parts), "deleted", old.size, old.entry))
    return sorted(changes, key=lambda change: change.path)


def _change(found: Found, kind: ChangeKind) -> FsChange:
    size = found.state.st_size if found.kind == "file" else 0
    return FsChange(text_of(found.parts), kind, size, found.kind)


def _differs(old: Fingerprint, found: Found, max_bytes: int) -> bool:
    if old.entry != found.kind:
        return True
    if found.kind == "file" and old.size != found.state.st_size:
        return True
    return old.content != _fingerprint(found, max_bytes).content


def _fingerprint(found: Found, max_bytes: int, most_kept: int = 0) -> Fingerprint:
    if found.kind == "file":
        return Fingerprint("file", found.state.st_size, *_digest(found, max_bytes, most_kept))
    if found.kind == "symlink":
        with explained(found.parts):
            return Fingerprint("symlink", 0, os.fsencode(os.readlink(found.name, dir_fd=found.dir_fd)))
    return Fingerprint(found.kind, 0, _unknown(found) if found.kind == "closed" else b"")


def _unknown(found: Found) -> bytes:
    """For what may not be looked at. A guest can do that to its own and change them, so these never compare equal.

    What belongs to somebody else, and is not ours to write, is out of the guest's reach too.
    """
    state = found.state
    if state.st_uid == os.geteuid() or state.st_mode & 0o022:
        return os.urandom(32)
    return f"{state.st_ino} {state.st_ctime_ns}".encode()


def _digest(found: Found, max_bytes: int, most_kept: int) -> tuple[bytes, bytes | None]:
    fd = open_found(found)
    if fd is None:
        return _unknown(found), None
    digest, total, first = hashlib.blake2b(digest_size=32), 0, b""
    try:
        with explained(found.parts):
            while chunk := os.read(fd, MIB):
                total += len(chunk)
                if total > max_bytes:
                    raise _too_large(found, max_bytes)
                digest.update(chunk)
                first = first or chunk
    finally:
        os.close(fd)
    # A file that may be kept is no larger than what is read at once: where more came, it is not.
    return digest.digest(), first if total <= most_kept and total == len(first) else None


def _too_large(found: Found, limit: int) -> LimitExceeded:
    hint = "give the sandbox a smaller work_dir, or pass the data as a read-only mount"
    return LimitExceeded(text_of(found.parts), f"takes the tree over {limit} bytes", limit=limit, hint=hint)
