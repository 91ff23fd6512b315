"""RunDirectory: the work directory of one run, with the request's input files; output files are read from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from warmcell.core.errors import InvalidRequest, PathTraversal, SandboxError
from warmcell.core.records import replace
from warmcell.core.request_checks import MAX_FILE_BYTES
from warmcell.core.types import MIB, Denial, ExecResult
from warmcell.workspace.descent import Descent
from warmcell.workspace.errors import FileMissing, WorkspaceError
from warmcell.workspace.files import put_file, read_file
from warmcell.workspace.names import split_relative
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.quota import space_for
from warmcell.workspace.root import Root


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

    def around(self, run: Callable[[], ExecResult], fetched: Sequence[str]) -> ExecResult:
        """Run, and add the files to the result, or to the partial result of a run that a limit ended."""
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
