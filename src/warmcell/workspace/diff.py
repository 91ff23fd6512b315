"""Changes in a workspace since a recorded state, by content.

A guest can forge times: it sets mtime freely, and on tmpfs a write through a mapping does not change even ctime. So a
file of unchanged size is always read and hashed again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from warmcell.core.light import closing_fd
from warmcell.core.types import MIB
from warmcell.workspace.errors import FileMissing, LimitExceeded, WrongKind
from warmcell.workspace.name_tree import NameTree
from warmcell.workspace.names import Parts
from warmcell.workspace.protected_paths import flag_reason
from warmcell.workspace.root import Root, text_of, translate_os_errors
from warmcell.workspace.walk import EntryKind, TreeEntry, TreeLimits, open_entry, walk

ChangeKind = Literal["created", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FsChange:
    """One file that was created, modified or deleted. `size` is the new size, or the old one of a deleted file.

    `entry` is "symlink" or "other" (FIFO, socket, device) for entries that are not regular files; they are never
    opened. As in git, directories are not reported, except "closed" ones: their content is unreadable.
    """

    path: str
    kind: ChangeKind
    size: int = 0
    entry: EntryKind = "file"

    @property
    def flag_reason(self) -> str | None:
        """Why this change may run code on the host, or None."""
        return flag_reason(self.path)

    @property
    def is_flagged(self) -> bool:
        return self.flag_reason is not None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Enough of an entry to detect changes. `content` is a digest or a link's target.

    `data` is the whole content of a small file, while the budget lasts, for line diffs.
    """

    entry: EntryKind
    size: int
    content: bytes
    data: bytes | None = None


#: Limits on the content kept in memory, per file and in total.
MOST_KEPT_OF_FILE, MOST_KEPT = 256 * 1024, 8 * MIB


State = Mapping[Parts, Fingerprint]


def record(root: Root, limits: TreeLimits | None = None) -> State:
    """Record the state of a tree. Raises `LimitExceeded` if it is too large to hash in reasonable time."""
    limits = limits or TreeLimits()
    state: dict[Parts, Fingerprint] = {}
    total, room = 0, MOST_KEPT
    for found in walk(root, (), limits):
        if found.kind == "directory":
            continue
        total += found.state.st_size if found.kind == "file" else 0
        if total > limits.total_bytes:
            raise _too_large(found, limits.total_bytes)
        fingerprint = state[found.parts] = _fingerprint(found, limits.total_bytes, min(room, MOST_KEPT_OF_FILE))
        room -= len(fingerprint.data or b"")
    return state


def content_before(before: State, parts: Parts) -> bytes:
    """The recorded content of a file. `FileMissing` if it did not exist, `LimitExceeded` if it was not kept."""
    name, old = text_of(parts), before.get(parts)
    if old is None:
        raise FileMissing(name, "did not exist")
    if old.entry != "file":
        raise WrongKind(name, "was not a file")
    if old.data is None:
        hint = f"files of up to {MOST_KEPT_OF_FILE // 1024} kB are kept, {MOST_KEPT // MIB} MB of them at most"
        raise LimitExceeded(name, "was too large to be kept", limit=MOST_KEPT_OF_FILE, hint=hint)
    return old.data


def changes_since(before: State, root: Root) -> list[FsChange]:
    """The differences, sorted by path. New files are not read, so their size does not matter."""
    limits = TreeLimits()
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
        # The content of a directory that is closed now may still exist; the directory itself is reported.
        if not any(closed.contents_along(parts)):
            changes.append(FsChange(text_of(parts), "deleted", old.size, old.entry))
    return sorted(changes, key=lambda change: change.path)


def _change(found: TreeEntry, kind: ChangeKind) -> FsChange:
    size = found.state.st_size if found.kind == "file" else 0
    return FsChange(text_of(found.parts), kind, size, found.kind)


def _differs(old: Fingerprint, found: TreeEntry, max_bytes: int) -> bool:
    if old.entry != found.kind:
        return True
    if found.kind == "file" and old.size != found.state.st_size:
        return True
    return old.content != _fingerprint(found, max_bytes).content


def _fingerprint(found: TreeEntry, max_bytes: int, most_kept: int = 0) -> Fingerprint:
    if found.kind == "file":
        return Fingerprint("file", found.state.st_size, *_digest(found, max_bytes, most_kept))
    if found.kind == "symlink":
        with translate_os_errors(found.parts):
            return Fingerprint("symlink", 0, os.fsencode(os.readlink(found.name, dir_fd=found.dir_fd)))
    return Fingerprint(found.kind, 0, _unknown(found) if found.kind == "closed" else b"")


def _unknown(found: TreeEntry) -> bytes:
    """The content of an unreadable entry. A guest can close and change its own files, so those never compare equal.

    The guest cannot change files of another user that are not writable.
    """
    state = found.state
    if state.st_uid == os.geteuid() or state.st_mode & 0o022:
        return os.urandom(32)
    return f"{state.st_ino} {state.st_ctime_ns}".encode()


def _digest(found: TreeEntry, max_bytes: int, most_kept: int) -> tuple[bytes, bytes | None]:
    fd = open_entry(found)
    if fd is None:
        return _unknown(found), None
    digest, total, first = hashlib.blake2b(digest_size=32), 0, b""
    with closing_fd(fd), translate_os_errors(found.parts):
        while chunk := os.read(fd, MIB):
            total += len(chunk)
            if total > max_bytes:
                raise _too_large(found, max_bytes)
            digest.update(chunk)
            first = first or chunk
    # A file small enough to be kept fits into the first chunk.
    return digest.digest(), first if total <= most_kept and total == len(first) else None


def _too_large(found: TreeEntry, limit: int) -> LimitExceeded:
    hint = "give the sandbox a smaller work_dir, or pass the data as a read-only mount"
    return LimitExceeded(text_of(found.parts), f"takes the tree over {limit} bytes", limit=limit, hint=hint)
