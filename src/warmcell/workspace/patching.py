"""Applies a patch to a workspace: all worked out in memory first, then written, and undone if a write fails."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from dataclasses import dataclass

from warmcell.core.types import MIB
from warmcell.workspace.diff import ChangeKind, FsChange
from warmcell.workspace.errors import FileMissing, PatchRejected
from warmcell.workspace.files import read_file, stat_path, write_file
from warmcell.workspace.hunks import apply_hunks
from warmcell.workspace.names import Parts
from warmcell.workspace.patch import FilePatch, parse_patch
from warmcell.workspace.paths import Root, explained, text_of

MAX_PATCHED_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class _Edit:
    """One file before and after; None is "not there"."""

    parts: Parts
    before: bytes | None
    after: bytes | None
    was_executable: bool | None
    executable: bool | None

    def as_change(self) -> FsChange:
        kind: ChangeKind = "created" if self.before is None else "deleted" if self.after is None else "modified"
        return FsChange(text_of(self.parts), kind, len(self.after if self.after is not None else self.before or b""))


def apply_patch(root: Root, base: Parts, patch: str | bytes) -> list[FsChange]:
    """Applies a unified diff beneath `base`, all of it or nothing. Raises `PatchRejected`, or what a path raises."""
    edits = _plan(root, base, parse_patch(_text(patch)))
    done: list[_Edit] = []
    missing = [
        directory for edit in edits if edit.after is not None for directory in _missing_parents(root, edit.parts)
    ]
    try:
        for edit in edits:
            done.append(edit)
            _put(root, edit.parts, edit.after, edit.executable)
    except BaseException:
        _undo(root, done, missing)
        raise
    return sorted((edit.as_change() for edit in edits), key=lambda change: change.path)


def _text(patch: str | bytes) -> str:
    """As text in which every byte of the original can be found again."""
    try:
        raw = patch if isinstance(patch, bytes) else patch.encode()
    except UnicodeEncodeError:
        raise PatchRejected("the patch is not valid Unicode") from None
    return raw.decode("utf-8", "surrogateescape")


def _plan(root: Root, base: Parts, patches: list[FilePatch]) -> list[_Edit]:
    edits: list[_Edit] = []
    budget = MAX_PATCHED_BYTES
    for patch in patches:
        new_edits = _edits_of(root, base, patch, budget)
        budget -= sum(len(edit.before or b"") + len(edit.after or b"") for edit in new_edits)
        if budget < 0:
            raise PatchRejected(f"the patched files have more than {MAX_PATCHED_BYTES} bytes together")
        edits += new_edits
    for parts, count in Counter(edit.parts for edit in edits).items():
        if count > 1:
            raise PatchRejected(f"{text_of(parts)!r} is patched twice")
    return edits


def _edits_of(root: Root, base: Parts, patch: FilePatch, budget: int) -> list[_Edit]:
    old = (*base, *patch.old) if patch.old is not None else None
    new = (*base, *patch.new) if patch.new is not None else None
    before = _read(root, old, budget)
    was_executable = bool(stat_path(root, old).mode & stat.S_IXUSR) if old is not None else None
    if new is not None and new != old:
        _require_absent(root, new)
    content = _patched(patch, before or b"")
    executable = patch.executable if patch.executable is not None else was_executable
    edits = []
    if new is not None:
        edits.append(_Edit(new, before if new == old else None, content, was_executable, executable))
    elif content:
        raise PatchRejected(f"the patch deletes {text_of(patch.target)!r} but does not take out all of it")
    if old is not None and new != old and not patch.is_copy:
        edits.append(_Edit(old, before, None, was_executable, None))
    return edits


def _read(root: Root, parts: Parts | None, budget: int) -> bytes | None:
    if parts is None:
        return None
    try:
        return read_file(root, parts, max(budget, 0))
    except FileMissing:
        raise PatchRejected(f"{text_of(parts)!r} is to be patched and does not exist") from None


def _patched(patch: FilePatch, before: bytes) -> bytes:
    text = before.decode("utf-8", "surrogateescape")
    return apply_hunks(text, patch.hunks, text_of(patch.target)).encode("utf-8", "surrogateescape")


def _require_absent(root: Root, parts: Parts) -> None:
    with contextlib.suppress(FileMissing):
        root.lstat(parts)
        raise PatchRejected(f"{text_of(parts)!r} is to be created and exists already")


def _missing_parents(root: Root, parts: Parts) -> list[Parts]:
    missing = []
    for depth in range(1, len(parts)):
        try:
            root.lstat(parts[:depth])
        except FileMissing:
            missing.append(parts[:depth])
    return missing


def _put(root: Root, parts: Parts, content: bytes | None, executable: bool | None) -> None:
    if content is not None:
        write_file(root, parts, content, executable=executable)
        return
    with root.parent(parts) as (fd, name), explained(parts), contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)


def _undo(root: Root, done: list[_Edit], made: list[Parts]) -> None:
    for edit in reversed(done):
        with contextlib.suppress(Exception):
            _put(root, edit.parts, edit.before, edit.was_executable)
    for parts in reversed(made):
        with contextlib.suppress(Exception), root.parent(parts) as (fd, name):
            os.rmdir(name, dir_fd=fd)
