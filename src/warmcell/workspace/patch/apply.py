"""Applies a patch to a workspace: computed in memory first, then written, and undone if a write fails."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass

from warmcell.core.light import on_error
from warmcell.core.types import MIB
from warmcell.workspace.diff import ChangeKind, FsChange
from warmcell.workspace.errors import Misfit, PatchRejected
from warmcell.workspace.files import put_file, read_file, replace_file, stat_path
from warmcell.workspace.name_tree import NameTree
from warmcell.workspace.names import Parts, display_path
from warmcell.workspace.patch.formats import BEGIN, parse_agent_patch, parse_unified
from warmcell.workspace.patch.hunks import MAX_MISFITS, ComparisonBudget, FilePatch, apply_hunks
from warmcell.workspace.root import DIRECTORY_SPACE, Root, space_for, space_freed, text_of, translate_os_errors
from warmcell.workspace.walk import Descent

MAX_PATCH_BYTES = 8 * MIB


def parse_patch(text: str) -> list[FilePatch]:
    """Parse a unified diff or an agent's patch. Raises `PatchRejected`."""
    if len(text) > MAX_PATCH_BYTES:
        raise PatchRejected(f"the patch is larger than {MAX_PATCH_BYTES} bytes")
    text = _strip_fence(text)
    patches = parse_agent_patch(text) if text.lstrip().startswith(BEGIN) else parse_unified(text)
    if not patches:
        hint = f"it needs '--- a/file', '+++ b/file' and '@@' lines, or '{BEGIN}' and '*** End Patch' around it"
        raise PatchRejected("this is not a unified diff", hint=hint)
    return patches


def _strip_fence(text: str) -> str:
    """Remove a Markdown code fence, and add the final newline that models often omit."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("\n```") and "\n" in stripped[:-4]:
        text = stripped[stripped.index("\n") + 1 : -3]
    return text if not text or text.endswith("\n") else text + "\n"


MAX_PATCHED_BYTES = 64 * MIB
#: Files and their parent directories, which a patch may create.
MAX_PATCHED_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class _Edit:
    """One file before and after; None if it does not exist."""

    parts: Parts
    before: bytes | None
    after: bytes | None
    mode: int
    executable: bool | None

    def as_change(self) -> FsChange:
        kind: ChangeKind = "created" if self.before is None else "deleted" if self.after is None else "modified"
        return FsChange(text_of(self.parts), kind, len(self.after if self.after is not None else self.before or b""))


def apply_patch(root: Root, base: Parts, patch: str | bytes) -> list[FsChange]:
    """Apply a patch beneath `base`, all or nothing. Raises `PatchRejected` or a path error."""
    edits = _plan(root, base, parse_patch(_text(patch)))
    for edit in edits:
        root.check_unprotected(edit.parts)
    done: list[_Edit] = []
    with Descent(root, create=True) as descent, on_error(lambda: _undo(root, done, descent.created)):
        for edit in edits:
            _apply_edit(root, descent, edit)
            done.append(edit)  # not before: an edit that fails changes nothing and is charged nothing
    return sorted((edit.as_change() for edit in edits), key=lambda change: change.path)


def _text(patch: str | bytes) -> str:
    """Decode reversibly (surrogateescape)."""
    try:
        raw = patch if isinstance(patch, bytes) else patch.encode()
    except UnicodeEncodeError:
        raise PatchRejected("the patch is not valid Unicode") from None
    return raw.decode("utf-8", "surrogateescape")


def _plan(root: Root, base: Parts, patches: list[FilePatch]) -> list[_Edit]:
    """The edits in depth-first order, so that each directory is entered once."""
    planned: NameTree[_Edit] = NameTree()
    budget, effort = MAX_PATCHED_BYTES, ComparisonBudget()
    misfits: list[Misfit] = []
    for patch in patches:
        if len(misfits) >= MAX_MISFITS:
            break
        for edit in _edits_of(root, base, patch, budget, effort, misfits):
            budget -= len(edit.before or b"") + len(edit.after or b"")
            if budget < 0:
                raise PatchRejected(f"the patched files have more than {MAX_PATCHED_BYTES} bytes together")
            *_, node = planned.path_to(edit.parts)
            if node.content is not None:
                raise PatchRejected(f"{text_of(edit.parts)!r} is patched twice")
            if planned.size > MAX_PATCHED_NAMES:
                raise PatchRejected(f"the patch names more than {MAX_PATCHED_NAMES} files and directories")
            node.content = edit
    if misfits:
        raise PatchRejected.unfit(misfits)
    return list(planned.in_order())


def _edits_of(
    root: Root, base: Parts, patch: FilePatch, budget: int, effort: ComparisonBudget, misfits: list[Misfit]
) -> list[_Edit]:
    """The edits for one file patch. Parts that do not apply are added to `misfits`, to report all of them at once."""
    old = (*base, *patch.old) if patch.old is not None else None
    new = (*base, *patch.new) if patch.new is not None else None
    found = len(misfits)
    if old is not None and not root.exists(old):
        misfits.append(Misfit(text_of(old), None, None, "does not exist"))
    if new is not None and new != old and root.exists(new):
        misfits.append(Misfit(text_of(new), None, None, "already exists and would be created"))
    if len(misfits) > found:
        return []
    before = read_file(root, old, max(budget, 0)) if old is not None else None
    content = _patch_content(patch, before or b"", effort, misfits)
    if new is None and content and len(misfits) == found:
        misfits.append(Misfit(text_of(old or ()), None, None, "would be deleted, but lines remain"))
    mode = stat_path(root, old).mode & 0o777 if old is not None else 0o644
    edits = []
    if new is not None:
        executable = patch.executable if patch.executable is not None else bool(mode & stat.S_IXUSR)
        edits.append(_Edit(new, before if new == old else None, content, mode, executable))
    if old is not None and new != old and not patch.is_copy:
        edits.append(_Edit(old, before, None, mode, None))
    return edits


def _patch_content(patch: FilePatch, before: bytes, effort: ComparisonBudget, misfits: list[Misfit]) -> bytes:
    if patch.is_whole:
        return b""
    text, found = apply_hunks(before.decode("utf-8", "surrogateescape"), patch.hunks, effort)
    path = text_of(patch.target)
    misfits += (Misfit(path, number, display_path(patch.hunks[number - 1].title), reason) for number, reason in found)
    return text.encode("utf-8", "surrogateescape")


def _apply_edit(root: Root, descent: Descent, edit: _Edit) -> None:
    root.check_unprotected(edit.parts)
    dir_fd = descent.enter(edit.parts[:-1])
    if edit.after is not None:
        replace_file(root, dir_fd, edit.parts, edit.after, executable=edit.executable)
        return
    with translate_os_errors(edit.parts), root.replacing():
        freed = space_freed(os.stat(edit.parts[-1], dir_fd=dir_fd, follow_symlinks=False))
        os.unlink(edit.parts[-1], dir_fd=dir_fd)
    root.refund(freed)


def _undo(root: Root, done: list[_Edit], made: list[tuple[Parts, int]]) -> None:
    """Restore the files without charging the quota."""
    with Descent(root) as descent:
        for edit in reversed(done):
            with contextlib.suppress(Exception):
                _restore_file(root, descent.enter(edit.parts[:-1]), edit)
        for parts, first in reversed(made):
            with contextlib.suppress(Exception):
                for depth in range(len(parts) - 1, first - 1, -1):
                    os.rmdir(parts[depth], dir_fd=descent.enter(parts[:depth]))
                    root.refund(DIRECTORY_SPACE)


def _restore_file(root: Root, dir_fd: int, edit: _Edit) -> None:
    if edit.before is None:
        os.unlink(edit.parts[-1], dir_fd=dir_fd)
    else:
        put_file(dir_fd, edit.parts[-1], edit.before, edit.mode)
    root.refund(_space(edit.after) - _space(edit.before))


def _space(content: bytes | None) -> int:
    return 0 if content is None else space_for(len(content))
