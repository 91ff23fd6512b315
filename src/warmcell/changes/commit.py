"""Commits changes: decides each by its base, the host's current file and the guest's file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile

from warmcell.changes import apply, content, text
from warmcell.changes.apply import Journal, Operation, Refused, facts_of
from warmcell.changes.base import Bases
from warmcell.changes.content import sync_filesystem
from warmcell.changes.detect import Detected, Lower, close, open_upper
from warmcell.changes.model import CommitReport, Conflict
from warmcell.changes.upper import UpperDirectory
from warmcell.core.errors import BackendUnavailable, PathTraversal, SandboxError
from warmcell.core.light import closing_fd, on_error
from warmcell.lifetime.own_modes import grant_owner
from warmcell.workspace.errors import WorkspaceError
from warmcell.workspace.files import replace_file, write_all
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root, temporary_name
from warmcell.workspace.walk import kind_of, walk

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_NO_BASE = "changed on the host since the sandbox started"
_BOTH = "changed on the host too, in the same lines"
_GONE = "deleted on the host"
_KINDS = {
    "other": "is a FIFO, socket or device, which is never committed",
    "closed": "is a directory that cannot be read",
}


@dataclass(frozen=True, slots=True)
class Step:
    """The operations that commit one change. `data` is the merged text; None: the guest's own content."""

    item: Detected
    operations: tuple[Operation, ...]
    data: bytes | None = None


class Conflicting(Exception):
    """A change cannot be committed; the message is the reason."""


@dataclass(slots=True)
class _Outcome:
    committed: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def report(self) -> CommitReport:
        return CommitReport(tuple(self.committed), tuple(self.merged), tuple(self.conflicts), tuple(self.skipped))

    def note(self, step: Step) -> None:
        (self.committed if step.data is None else self.merged).append(step.item.change.path)


class Committer:
    """Commits a selection of the detected changes. `directory` is for its journal; texts that were merged with the
    host's are written to `merged`, the guests' view, too.
    """

    def __init__(
        self, root: Root, upper: UpperDirectory, bases: Bases, start_ns: int, directory: str, merged: Root
    ) -> None:
        self._root, self._upper, self._bases, self._merged = root, upper, bases, merged
        self._start_ns, self._directory = start_ns, directory
        #: The modes of missing directories, see `_modes_above`.
        self._modes: dict[Parts, tuple[int, ...]] = {}

    def commit(self, items: Iterable[Detected], allow_flagged: Sequence[str], *, dry_run: bool) -> CommitReport:
        outcome, steps, allowed = _Outcome(), [], frozenset(allow_flagged)
        if not dry_run and not apply.recover(self._directory):  # the new journal would replace that of the earlier one
            reason = f"a commit to {self._root.path!r} was interrupted, and that directory was moved or removed"
            raise BackendUnavailable(reason, hint="move the directory back")
        with Lower(self._root) as lower:
            for item in items:
                if item.change.is_flagged and not matching_paths(item, allowed):
                    outcome.skipped.append(item.change.path)
                    continue
                try:
                    steps.append(self._decide(item, lower))
                except Conflicting as conflict:
                    outcome.conflicts.append(Conflict(item.change.path, str(conflict)))
        if dry_run:
            for step in steps:
                outcome.note(step)
        elif steps:
            self._execute(steps, outcome)
        return outcome.report()

    # ---- decisions ----

    def _decide(self, item: Detected, lower: Lower) -> Step:
        if item.kind in _KINDS:
            raise Conflicting(_KINDS[item.kind])
        theirs = lower.stat(item.parts)
        if item.kind == "deleted":
            return Step(item, (self._deletion(item.parts, theirs),))
        if item.change.kind == "mode":
            return Step(item, (self._mode_change(item, theirs),))
        operations: list[Operation] = []
        data = None
        if theirs is not None and kind_of(theirs.st_mode) != item.kind:
            operations.append(self._deletion(item.parts, theirs))
            theirs = None
        elif theirs is not None:
            data = self._reconcile(item, theirs, lower)
        elif item.was_below or item.change.kind == "modified" or self._bases.get(item.parts) is not None:
            raise Conflicting(_GONE)
        if item.kind == "directory":
            mode, above = _permissions(item.mode) | 0o700, self._modes_above(item.parts[:-1], lower)
            operations.append(Operation("make_directory", item.parts, mode=mode, modes_above=above))
        else:
            expected = None if theirs is None else facts_of(theirs)
            mode = _permissions(item.mode if theirs is None else self._merge_mode(item, theirs))
            temporary, above = self._temporary_for(item.parts), self._modes_above(item.parts[:-1], lower)
            operations.append(Operation("put", item.parts, temporary, expected, mode=mode, modes_above=above))
        if item.old_parts is not None:  # last: if the new name is refused, the old one remains
            operations.append(self._deletion(item.old_parts, lower.stat(item.old_parts)))
        return Step(item, tuple(operations), data)

    def _modes_above(self, parts: Parts, lower: Lower) -> tuple[int, ...]:
        """The modes of those of a directory and its parents that the host lacks: private ones must stay private."""
        if parts not in self._modes:
            above = (parts[:count] for count in range(len(parts), 0, -1))
            missing = takewhile(lambda path: lower.stat(path) is None, above)
            self._modes[parts] = tuple(map(self._mode_of, missing))[::-1]
        return self._modes[parts]

    def _mode_of(self, directory: Parts) -> int:
        try:
            return _permissions(self._upper.root.lstat(directory).st_mode) & 0o755 | 0o700
        except (WorkspaceError, PathTraversal):  # a running guest removed it
            return 0o700

    def _merge_mode(self, item: Detected, theirs: os.stat_result) -> int:
        """The guest's mode, unless only the host changed it."""
        base = self._bases.get(item.parts)
        is_kept = base is not None and base.permissions == _permissions(item.mode)
        return theirs.st_mode if is_kept else item.mode

    def _reconcile(self, item: Detected, theirs: os.stat_result, lower: Lower) -> bytes | None:
        """The merged text if both sides changed it; None if only the guest did."""
        if item.kind != "file":
            if theirs.st_ctime_ns > self._start_ns and not self._is_base_state(item.parts, theirs):
                raise Conflicting(_NO_BASE)
            return None
        base = self._bases.get(item.parts)
        if base is None:
            raise Conflicting(_NO_BASE)
        if base.is_state(theirs):
            return None
        there, ours = lower.open(item.parts), open_upper(self._upper, item.parts)
        try:
            if there is None or ours is None:
                raise Conflicting("cannot be read")
            if base.digest and content.digest(there) == base.digest:
                return None
            return self._merge(item.parts, ours, there)
        finally:
            close(there, ours)

    def _merge(self, parts: Parts, ours: int, theirs: int) -> bytes:
        base = self._bases.content(parts)
        mine, other = (content.read_all(fd, text.MOST_TEXT_BYTES) for fd in (ours, theirs))
        if base is None or mine is None or other is None:
            raise Conflicting("changed on the host too, and is too large to be merged")
        merged = text.merge(base, mine, other)
        if merged is None:
            is_text = all(map(text.is_text, (base, mine, other)))
            raise Conflicting(_BOTH if is_text else "changed on the host too, and is not text")
        return merged

    def _is_base_state(self, parts: Parts, state: os.stat_result) -> bool:
        base = self._bases.get(parts)
        return base is not None and base.is_state(state)

    def _deletion(self, parts: Parts, theirs: os.stat_result | None) -> Operation:
        if theirs is None:
            raise Conflicting(_GONE)
        aside = (*parts[:-1], temporary_name())
        if stat.S_ISDIR(theirs.st_mode):
            newest = self._check_tree(parts)
            return Operation("delete_tree", parts, aside, facts_of(theirs), newest_ns=newest)
        if theirs.st_ctime_ns > self._start_ns and not self._is_base_state(parts, theirs):
            raise Conflicting(_NO_BASE)
        return Operation("delete", parts, aside, facts_of(theirs))

    def _check_tree(self, parts: Parts) -> int:
        """Refuse to delete a directory in which the host changed something. Returns the latest ctime in it."""
        newest = 0
        try:
            for entry in walk(self._root, parts):
                newest = max(newest, entry.state.st_ctime_ns)
                is_known = entry.state.st_ctime_ns <= self._start_ns or self._is_ours(entry.parts, entry.state)
                if entry.kind == "closed" or not is_known:
                    raise Conflicting(f"{'/'.join(entry.parts)} in it {_NO_BASE}")
        except (WorkspaceError, PathTraversal) as error:
            raise Conflicting(error.message) from None
        return newest

    def _is_ours(self, parts: Parts, state: os.stat_result) -> bool:
        """Whether a commit of ours wrote it, or entries of this directory. The host may have moved in any other."""
        return self._is_base_state(_entries_of(parts) if stat.S_ISDIR(state.st_mode) else parts, state)

    def _mode_change(self, item: Detected, theirs: os.stat_result | None) -> Operation:
        if theirs is None:
            raise Conflicting(_GONE)
        base = self._bases.get(item.parts)
        is_as_before = base is not None and base.permissions == _permissions(theirs.st_mode)
        # The times of a directory change with its entries.
        if theirs.st_ctime_ns > self._start_ns and not is_as_before and not stat.S_ISDIR(theirs.st_mode):
            raise Conflicting(_NO_BASE)
        return Operation("mode", item.parts, expected=facts_of(theirs), mode=_permissions(item.mode))

    def _temporary_for(self, parts: Parts) -> Parts:
        """A name in the nearest parent that exists, on the same file system: a rename from there is atomic."""
        for count in range(len(parts) - 1, -1, -1):
            try:
                with self._root.directory(parts[:count]):
                    return (*parts[:count], temporary_name())
            except (WorkspaceError, PathTraversal):  # missing, or to be replaced by a directory first
                continue
        raise Conflicting("its directory cannot be opened")

    # ---- execution ----

    def _execute(self, steps: list[Step], outcome: _Outcome) -> None:
        identity = os.fstat(self._root.fd)
        draft = Journal("staging", self._root.path, (identity.st_dev, identity.st_ino), _all_operations(steps))
        apply.write_journal(self._directory, draft)
        # Recover from the journal on disk: the write of "applying" may have succeeded.
        with on_error(lambda: apply.recover(self._directory)):
            staged = self._stage(steps, outcome)
            staged_operations = _all_operations(staged)
            apply.write_journal(self._directory, replace(draft, state="applying", operations=staged_operations))
        for step in staged:
            try:
                apply.apply_change(self._root, step.operations)
            except Refused as refused:
                outcome.conflicts.append(Conflict(step.item.change.path, str(refused)))
                continue
            # A guest's file without the host's part must not get the new base: the next commit would undo that part.
            if step.data is None or self._show(step.item.parts, step.data):
                self._update_base(step)
            outcome.note(step)
        self._record_directories(steps)
        apply.sync(self._root, staged_operations)
        apply.remove_journal(self._directory)

    def _stage(self, steps: list[Step], outcome: _Outcome) -> list[Step]:
        is_many = len(steps) > apply.FEW_FILES
        staged = []
        for step in steps:
            try:
                operations = tuple(self._prepare(step, operation, not is_many) for operation in step.operations)
            except (OSError, PathTraversal, WorkspaceError) as error:
                reason = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
                outcome.conflicts.append(Conflict(step.item.change.path, reason.lower()))
                apply.undo(self._root, step.operations)
                continue
            staged.append(replace(step, operations=operations))
        if is_many:
            sync_filesystem(self._root.fd)
        return staged

    def _prepare(self, step: Step, operation: Operation, must_sync: bool) -> Operation:
        """Create the temporary file of a put."""
        if operation.do != "put":
            return operation
        with self._root.parent(operation.temporary) as (dir_fd, name):
            if step.item.kind == "symlink":
                os.symlink(step.item.target, name, dir_fd=dir_fd)
            else:
                self._write(step, operation, dir_fd, name, must_sync)
            state = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        return replace(operation, staged=(state.st_dev, state.st_ino))

    def _write(self, step: Step, operation: Operation, dir_fd: int, name: str, must_sync: bool) -> None:
        with closing_fd(os.open(name, _CREATE, 0o600, dir_fd=dir_fd)) as target:
            grant_owner(target)
            if step.data is not None:
                write_all(target, step.data)
            else:
                with self._upper.root.file(step.item.parts) as source:
                    content.copy(source, target)
            self._give_owner(operation, target)
            os.fchmod(target, operation.mode)
            if must_sync:
                os.fsync(target)

    def _give_owner(self, operation: Operation, target: int) -> None:
        """If we are root: the owner of the replaced file, or of the directory for a new one."""
        if os.geteuid() != 0:
            return
        with self._root.directory(operation.temporary[:-1]) as directory:
            state = os.fstat(directory)
        if operation.expected is not None:
            state = self._root.lstat(operation.parts)
        os.fchown(target, state.st_uid, state.st_gid)

    def _show(self, parts: Parts, data: bytes) -> bool:
        """Write a merged text to the guests' view. False if the guest or a full disk prevents it."""
        try:
            with self._merged.parent(parts) as (dir_fd, _):
                replace_file(self._merged, dir_fd, parts, data)
        except (OSError, SandboxError):
            return False
        return True

    def _update_base(self, step: Step) -> None:
        """The committed file is the new base, so that later changes on the host are detected."""
        if step.item.kind not in ("file", "symlink"):
            return
        with Lower(self._root) as lower:
            state = lower.stat(step.item.parts)
            if state is None or kind_of(state.st_mode) != step.item.kind:
                return
            if step.item.kind == "symlink":
                self._bases.put(step.item.parts, state, lower.read_link(step.item.parts))
                return
            fd = lower.open(step.item.parts)
            if fd is not None:
                with closing_fd(fd):
                    self._bases.record(step.item.parts, fd, step.item.mode)

    def _record_directories(self, steps: Iterable[Step]) -> None:
        """Record the directories whose entries or modes this commit changed, to detect later changes on the host."""
        paths = {operation.parts for step in steps for operation in step.operations}
        above = {parts[:count] for parts in paths for count in range(1, len(parts) + 1)}
        with Lower(self._root) as lower:
            for parts in sorted(above):
                state = lower.stat(parts)
                if state is not None and stat.S_ISDIR(state.st_mode):
                    self._bases.put(_entries_of(parts), state, "")


def matching_paths(item: Detected, paths: Set[str]) -> Set[str]:
    """The paths that name the change or a directory above it."""
    own = [item.change.path] + ([item.change.old_path] if item.change.old_path else [])
    above = [path[:at] for path in own for at, char in enumerate(path) if char == "/"]
    return paths & {*own, *above, *(f"{path}/" for path in above)}


def _all_operations(steps: Iterable[Step]) -> tuple[Operation, ...]:
    return tuple(
        replace(operation, follows=position > 0) for step in steps for position, operation in enumerate(step.operations)
    )


def _entries_of(parts: Parts) -> Parts:
    """The name under which a directory is recorded, which differs from that of a file at its path."""
    return (*parts, "")


def _permissions(mode: int) -> int:
    """The mode without set-id and sticky bits."""
    return stat.S_IMODE(mode) & 0o777
