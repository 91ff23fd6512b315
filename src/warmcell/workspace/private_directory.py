"""Private directories for guests, with the input files of a run, and the removal of those that killed programs left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from warmcell.core.errors import BackendUnavailable, InvalidRequest, PathTraversal, SandboxError
from warmcell.core.light import Closing
from warmcell.core.records import replace
from warmcell.core.request_checks import MAX_FILE_BYTES
from warmcell.core.types import MIB, Denial, ExecResult
from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.lifetime.held_directories import (
    HeldDirectory,
    create_held_directory,
    default_temporary_directory,
    find_abandoned,
    swept_directories,
)
from warmcell.workspace.errors import FileMissing, WorkspaceError
from warmcell.workspace.files import put_file, read_file
from warmcell.workspace.names import split_relative
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root, space_for
from warmcell.workspace.walk import Descent

#: A process sweeps once; its own leftovers are swept by the next one.
_has_swept = False


class PrivateDirectory(Closing):
    """A directory only for this user. `close` removes it; if the program is killed, the next sweep does.

    `is_named`: a policy names its path, which must be text for that.
    """

    def __init__(self, kind: str, *, is_named: bool = False) -> None:
        if is_named:
            _check_text(default_temporary_directory())
        sweep_once()
        try:
            self._held: HeldDirectory = create_held_directory(f"warmcell-{kind}-")
        except OSError as error:
            raise host_failure(error, "make a temporary directory") from error
        self.path = self._held.path

    def close(self) -> None:
        """Remove the directory. Idempotent; does nothing in a forked child."""
        try:
            if self._held.is_ours:
                self._remove()
        finally:
            self._held.release()

    def _remove(self) -> None:
        try:
            remove_directory(self.path)
        except OSError as error:
            if not is_exhaustion(error):
                raise
            self._held.release()  # frees a descriptor; if that is not enough, the next program's sweep removes it
            remove_directory(self.path)


def _check_text(place: str) -> None:
    try:
        place.encode()
    except UnicodeEncodeError:
        message = f"the name of the temporary directory {place!r} is not UTF-8"
        raise BackendUnavailable(message, hint="set TMPDIR to another one") from None


def sweep_once() -> None:
    """Remove leftovers of this user's killed programs, once per process."""
    global _has_swept
    if not _has_swept:
        _has_swept = True
        for parent, prefixes in swept_directories():
            sweep(parent, prefixes)


def sweep(parent: str, prefixes: tuple[str, ...]) -> None:
    for path in find_abandoned(parent, prefixes):
        try:
            remove_directory(path)
        except (OSError, WorkspaceError):
            continue  # a dying guest may still write there; the next program's sweep tries again


def check_room(files: Mapping[str, bytes], disk_mb: int) -> None:
    """Refuse input files that exceed the run's disk limit."""
    if sum(space_for(len(content)) for content in files.values()) > disk_mb * MIB:
        hint = "send fewer files, or raise Limits(disk_mb=...)"
        raise InvalidRequest(f"take more than the run's {disk_mb} MB of disk", field="files", hint=hint)


class RunDirectory:
    """A private directory on the host, removed by `cleanup` (or by the next sweep if this process is killed).

    Read files from it only after all processes of the guest have ended.
    """

    def __init__(self, files: Mapping[str, bytes], cleanup: ExitStack) -> None:
        directory = PrivateDirectory("work")
        cleanup.callback(directory.close)
        self.path = directory.path
        self._root = Root(self.path)
        cleanup.callback(self._root.close)
        with Descent(self._root, create=True) as descent:
            for path in sorted(files):
                *above, name = split_relative(path)
                put_file(descent.enter(tuple(above)), name, files[path], 0o644)

    def run_and_fetch(self, run: Callable[[], ExecResult], fetched: Sequence[str]) -> ExecResult:
        """Call `run`, and add the files to its result, or to the partial result of an error."""
        try:
            return self._with_files(run(), fetched)
        except SandboxError as error:
            partial = getattr(error, "result", None)
            if isinstance(partial, ExecResult):
                error.result = self._with_files(partial, fetched)  # type: ignore[attr-defined]
            raise

    def _with_files(self, result: ExecResult, paths: Sequence[str]) -> ExecResult:
        """Add the files that exist. A link or special file in place of one is reported as a denial, not followed."""
        found: dict[str, bytes] = {}
        refused: list[Denial] = []
        for path in paths:
            room = MAX_FILE_BYTES - sum(map(len, found.values()))
            try:
                found[path] = read_file(self._root, split_relative(path), room)
            except FileMissing:
                continue
            except (WorkspaceError, PathTraversal) as error:
                refused.append(Denial("file", path, "fetch_files", error.message))
        return replace(result, files=found, denials=[*result.denials, *refused])
