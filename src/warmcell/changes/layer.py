"""ChangeLayer: the changes of one sandbox to one host directory, from the first write to commit or discard."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from warmcell.cage.linux.kernel_files import is_root_of_host
from warmcell.cage.overlay_server import UPPER, WORK
from warmcell.changes.apply import has_journal, recover
from warmcell.changes.base import Bases
from warmcell.changes.commit import Committer, matching_paths
from warmcell.changes.detect import Detected, Detector, Lower
from warmcell.changes.model import Change, CommitReport
from warmcell.changes.overlay import Overlay, OverlayUnavailable
from warmcell.changes.patch import PatchWriter
from warmcell.changes.restore import Restorer
from warmcell.changes.upper import CopiedTree, UpperDirectory, copy_upper
from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.light import closing_fd, on_error
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.held_directories import (
    HeldDirectory,
    create_held_directory,
    hold,
    user_directory,
)
from warmcell.lifetime.own_modes import grant_owner, make_directories, make_directory
from warmcell.workspace.diff import ChangeKind, FsChange
from warmcell.workspace.files import put_file
from warmcell.workspace.names import printable
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import OPEN_DIRECTORY, Root, translate_os_errors

_PREFIX = "layer-"
#: Bases are recorded after runs, taking at most 1/20 of a processor's time.
_RECORD_INTERVAL = 20
_BASES, _NAMES, _ABOUT = "bases", "names", "about.json"
#: An empty file that is renamed when the layer is kept: a new one could not be created on a full disk.
_KEPT, _UNKEPT = "kept", "unkept"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Shorter steps of the clock could also be the time that reading two clocks takes.
_SHORTEST_STEP_NS = 10**8
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def state_place() -> str:
    """The directory of layers, in this user's state directory."""
    return os.path.join(user_directory("XDG_STATE_HOME", ".local", "state"), "warmcell", "changes")


class ChangeLayer:
    """Thread-safe. `close` removes it with all uncommitted changes, unless `keep` was called.

    `home` is the directory's path in guests. `resume` continues changes that were kept, if there are any; `keeps` makes
    `close` keep changes. `parent` is a layer whose changes are copied first. `may_mount=False`: a private copy instead
    of an overlay.
    """

    def __init__(
        self,
        directory: str,
        home: str,
        *,
        resume: bool = False,
        parent: ChangeLayer | None = None,
        may_mount: bool = True,
        keeps: bool = False,
    ) -> None:
        self._lock = threading.Lock()
        self._home = home
        self._is_kept, self._keeps = False, keeps
        #: Whether it continues changes that were kept.
        self._is_resumed = False
        self._noted, self._note_seconds = 0.0, 0.0
        self._first_offset = self._lowest_offset = _clock_offset()
        self.lower = Root(directory)
        #: Guests see it in place of the directory; None: they see a copy.
        self.overlay: Overlay | None = None
        self._start_ns = 0
        self._may_mount = may_mount and not is_root_of_host()
        self._upper: UpperDirectory | None = None
        self._held: HeldDirectory | None = None
        with on_error(self.give_up):
            try:
                recover_abandoned()
                kept = resume_layer(self.lower) if resume else None
                self._is_resumed = kept is not None
                self._held = kept or _create(self.lower)
                self._open(self._held.path, parent)
            except OSError as error:
                raise host_failure(error, "prepare a place for the changes") from error

    def _open(self, place: str, parent: ChangeLayer | None) -> None:
        if parent is not None:
            parent.copy_to(place)
        path = os.path.join(place, UPPER)
        self._bases = Bases(os.path.join(place, _BASES))
        about = _read_about(place)
        is_copy = bool(about.get("is_copy")) or (parent is not None and parent.overlay is None)
        if not is_copy and self._may_mount:
            with suppress(OverlayUnavailable):  # a copy takes longer, with the same result
                self.overlay = Overlay(self.lower.path, place)
        start_ns = self.overlay.started_ns if self.overlay is not None else os.stat(path).st_ctime_ns
        if self.overlay is not None:
            self._upper = UpperDirectory(path)
        else:
            self._upper = CopiedTree(path, None if is_copy else self.lower, os.path.join(place, _NAMES))
        self._start_ns = _start_of(about) or (start_ns if parent is None else parent._start_ns - parent._set_back_ns())
        facts = about | {
            "is_copy": self.overlay is None,
            "directory": self.lower.path,
            "identity": _identity(self.lower),
            "start_ns": self._start_ns,
        }
        if facts != about:  # those of a resumed layer stay, also if the disk is full
            with closing_fd(os.open(place, OPEN_DIRECTORY)) as directory:
                put_file(directory, _ABOUT, json.dumps(facts).encode(), 0o600)

    @property
    def mechanism(self) -> str:
        """How changes are kept separate: "overlay", or "copy" with its size."""
        if self.overlay is not None or not isinstance(self._upper, CopiedTree):
            return "overlay"
        report = self._upper.report
        return f"copy of {report.files} files, {report.total_bytes} bytes"

    @property
    def copy_path(self) -> str:
        """The private copy that guests write to without an overlay."""
        return self.upper.root.path

    @property
    def upper(self) -> UpperDirectory:
        assert self._upper is not None
        return self._upper

    @property
    def place(self) -> str:
        assert self._held is not None
        return self._held.path

    @property
    def descriptor(self) -> int:
        """A descriptor of the guests' view of the directory."""
        return self.upper.root.fd if self.overlay is None else self.overlay.root

    def diff(self) -> list[FsChange]:
        found = [item for change in self.changes() for item in _as_fs_changes(change)]
        return sorted(found, key=lambda item: item.path)

    def changes(self) -> list[Change]:
        with self._lock:
            return [item.change for item in self._detect()]

    def patch(self, paths: Sequence[str] | None = None) -> bytes:
        """Bytes, because texts need not be UTF-8."""
        with self._lock, Lower(self.lower) as lower:
            return PatchWriter(self.upper, lower).write(self._select(paths))

    def commit(
        self, paths: Sequence[str] | None, allow_flagged: Sequence[str], *, dry_run: bool, merged: Root
    ) -> CommitReport:
        """`merged` is the guests' view; texts that were merged with the host's are written there too."""
        with self._lock:
            items = self._select(paths)
            start_ns = self._start_ns - self._set_back_ns()
            committer = Committer(self.lower, self.upper, self._bases, start_ns, self.place, merged)
            try:
                return committer.commit(items, allow_flagged, dry_run=dry_run)
            except OSError as error:
                raise host_failure(error, "commit the changes") from error

    def discard(self, paths: Sequence[str] | None, merged: Root) -> None:
        with self._lock, translate_os_errors(()):
            Restorer(merged, self.lower).restore(self._select(paths))

    def note_bases(self) -> None:
        """Record the bases of changed files early, before the host may change them too."""
        now = time.monotonic()
        if now - self._noted < _RECORD_INTERVAL * self._note_seconds:
            return
        began = time.thread_time()  # not elapsed time: after a host without a processor it would forgo many runs
        with self._lock:
            self._detect()
        self._noted = time.monotonic()
        self._note_seconds = time.thread_time() - began

    def copy_to(self, place: str) -> None:
        """Copy the changes into the directory of another layer."""
        with self._lock:
            self._detect()
            copy_upper(self.place, place, (UPPER, _BASES))
            if isinstance(self._upper, CopiedTree):
                shutil.copy(os.path.join(self.place, _NAMES), place)

    def keep(self) -> str:
        """Make `close` keep the layer for the next one with `resume`. Returns its directory."""
        self._is_kept = True  # first: without the mark too, `close` must not remove what is wanted
        self.keep_if_killed()
        return self.place

    def keep_if_killed(self) -> None:
        """Have the next layer with `resume` find it if this program is killed. `close` still removes it."""
        try:
            _mark_as_kept(self.place)
        except OSError as error:
            raise host_failure(error, f"keep the changes in {self.place!r}") from error

    def _detect(self) -> list[Detected]:
        facts = self._bases, self._start_ns, self.lower.path, self._set_back_ns()
        with Lower(self.lower) as lower, translate_os_errors(()):
            return Detector(self.upper, lower, *facts).detect()

    def _set_back_ns(self) -> int:
        """How far the clock was set back since the start: times of later changes may be as much earlier."""
        self._lowest_offset = min(self._lowest_offset, _clock_offset())
        back = self._first_offset - self._lowest_offset
        return back if back > _SHORTEST_STEP_NS else 0

    def _may_have_changes(self) -> bool:
        """True also if they cannot be listed, such as more entries than the limit: they must not be lost."""
        try:
            return bool(self._detect())
        except (OSError, SandboxError):
            return True

    def _select(self, paths: Sequence[str] | None) -> list[Detected]:
        found = self._detect()
        if paths is None:
            return found
        wanted = frozenset(_relative(path, self._home) for path in paths)
        if "." in wanted:
            return found
        named = [(item, matching_paths(item, wanted)) for item in found]
        for path in sorted(wanted.difference(*(names for _, names in named))):
            raise InvalidRequest(f"{path!r} has no changes", field="paths", hint="changes() lists all changes")
        return [item for item, names in named if names]

    def give_up(self) -> None:
        """`close` if its use could not begin: changes that it continues stay kept."""
        self._is_kept = self._is_kept or self._is_resumed
        self.close()

    def close(self) -> None:
        """Idempotent."""
        try:
            if self._keeps and self._upper is not None and self._held is not None and self._may_have_changes():
                self.keep()
        finally:
            self._release()

    def _release(self) -> None:
        overlay, self.overlay = self.overlay, None
        if overlay is not None:
            overlay.close()
        if self._upper is not None:
            self._upper.close()
        self.lower.close()
        held, self._held = self._held, None
        if held is not None:
            if held.is_ours and not self._is_kept and _recover_commit(held.path):
                with suppress(FileNotFoundError):  # first: what is half removed must not be resumed
                    os.unlink(os.path.join(held.path, _KEPT))
                remove_directory(held.path)
            held.release()


def _clock_offset() -> int:
    """The clock's distance from one that is never set: the quickest of a few readings, since a busy host interrupts."""
    readings: list[tuple[int, int]] = []
    for _ in range(5):
        before, now = time.clock_gettime_ns(_BOOT_CLOCK), time.time_ns()
        readings.append((time.clock_gettime_ns(_BOOT_CLOCK) - before, now - before))
    return min(readings)[1]


def _as_fs_changes(change: Change) -> Iterator[FsChange]:
    kinds: dict[str, ChangeKind] = {"added": "created", "renamed": "created", "deleted": "deleted"}
    path = printable(change.path)
    yield FsChange(path, kinds.get(change.kind, "modified"), change.size, change.entry)
    if change.old_path is not None:
        yield FsChange(printable(change.old_path), "deleted", change.size, change.entry)


def _relative(path: str, home: str) -> str:
    """The directory itself is ".", so that an empty text is never taken for it."""
    text = os.fspath(path)
    if text == home or text.startswith(home.rstrip("/") + "/"):
        text = text[len(home) :].strip("/") or "."
    return text.strip("/").removeprefix("./")


def _create(lower: Root) -> HeldDirectory:
    parent = state_place()
    make_directories(parent)
    held = create_held_directory(_PREFIX, parent)
    with on_error(held.release):
        for name in (UPPER, WORK, _BASES):
            make_directory(os.path.join(held.path, name))
        # The overlay's top directory takes its mode from here.
        os.chmod(os.path.join(held.path, UPPER), stat.S_IMODE(os.fstat(lower.fd).st_mode) & 0o777 | 0o700)
        with closing_fd(os.open(os.path.join(held.path, _UNKEPT), _CREATE, 0o600)) as file:
            grant_owner(file)
    return held


def _mark_as_kept(place: str) -> None:
    try:
        os.rename(os.path.join(place, _UNKEPT), os.path.join(place, _KEPT))
    except FileNotFoundError:  # it has the mark already
        with open(os.path.join(place, _KEPT), "a") as file:
            grant_owner(file.fileno())


def _identity(root: Root) -> list[int]:
    state = os.fstat(root.fd)
    return [state.st_dev, state.st_ino]


def _read_about(place: str) -> dict[str, object]:
    try:
        with open(os.path.join(place, _ABOUT)) as file:
            about = json.load(file)
    except (OSError, ValueError):  # killed before it was written
        return {}
    return about if isinstance(about, dict) else {}


def _start_of(about: dict[str, object]) -> int:
    start = about.get("start_ns", 0)
    return start if isinstance(start, int) else 0


def resume_layer(lower: Root) -> HeldDirectory | None:
    """Take over the kept changes of that directory, if there are any. They stay marked as kept until `close`."""
    for name in _names():
        place = os.path.join(state_place(), name)
        if os.path.exists(os.path.join(place, _KEPT)) and _read_about(place).get("identity") == _identity(lower):
            held = hold(place)
            if held is not None:
                return held
    return None


def _names() -> Iterator[str]:
    try:
        yield from sorted(name for name in os.listdir(state_place()) if name.startswith(_PREFIX))
    except FileNotFoundError:
        return


def _recover_commit(place: str) -> bool:
    """Complete or undo a commit that failed, while its journal is there. False: the next start tries again.

    That is also so while the directory is missing: its disk may not be mounted yet, and it has half of the commit.
    """
    try:
        return recover(place)
    except (OSError, SandboxError, ValueError):
        return False


def recover_abandoned() -> None:
    """Complete or undo commits of killed programs, and remove their layers unless they were kept."""
    for place in (os.path.join(state_place(), name) for name in _names()):
        # Not even locked: a program that starts now would take it for one in use, and go on without its changes.
        if os.path.exists(os.path.join(place, _KEPT)) and not has_journal(place):
            continue
        try:
            held = hold(place)
        except OSError:  # no descriptors left: the next start tries again
            return
        if held is not None:
            with held:
                _recover_layer(place)


def _recover_layer(place: str) -> None:
    with suppress(OSError, SandboxError):  # the next start tries again
        if _recover_commit(place) and not os.path.exists(os.path.join(place, _KEPT)):
            remove_directory(place)
