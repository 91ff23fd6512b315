"""Errors of host-side file access. Paths that leave the workspace, links and special files are `PathTraversal`.

Some also derive from the matching built-in exception, such as `FileNotFoundError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass

_MISFITS_SHOWN = 10


class WorkspaceError(SandboxError):
    """A file operation on the workspace failed. `path` is what the caller gave."""

    code = "sandbox.workspace_error"
    fault = "caller"

    def __init__(self, path: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path!r} {reason}", hint=hint)
        self.path = path


class FileMissing(WorkspaceError, FileNotFoundError):
    """No such file or directory."""

    code = "sandbox.file_not_found"

    def __init__(self, path: str, reason: str = "does not exist") -> None:
        super().__init__(path, reason)


class AlreadyExists(WorkspaceError, FileExistsError):
    """The path exists."""

    code = "sandbox.file_exists"

    def __init__(self, path: str) -> None:
        super().__init__(path, "already exists")


class AccessDenied(WorkspaceError, PermissionError):
    """Permission denied by the file's mode."""

    code = "sandbox.access_denied"

    def __init__(self, path: str) -> None:
        super().__init__(path, "is not accessible: permission denied", hint="change its mode inside the sandbox")


class WrongKind(WorkspaceError):
    """A directory where a file is needed, or vice versa."""

    code = "sandbox.wrong_file_kind"


class LimitExceeded(WorkspaceError):
    """The operation exceeded a limit on bytes, entries or depth. Partial results were removed."""

    code = "sandbox.limit_exceeded"

    def __init__(self, path: str, reason: str, *, limit: int, hint: str | None = None) -> None:
        super().__init__(path, reason, hint=hint)
        self.limit = limit


class ArchiveRejected(SandboxError):
    """The archive contains something that is never unpacked. Nothing was written."""

    code = "sandbox.archive_rejected"
    fault = "caller"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A part of a patch that does not apply. `hunk` and `header` are None if the whole file does not."""

    path: str
    hunk: int | None
    header: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r}{f', hunk {self.hunk} ({self.header})' if self.hunk else ''}: {self.reason}"


class PatchRejected(SandboxError):
    """The patch is malformed, does not apply, or names a forbidden file. Nothing was changed.

    `misfits` lists all parts of a well-formed patch that do not apply.
    """

    code = "sandbox.patch_rejected"
    fault = "caller"

    def __init__(self, message: str, *, hint: str | None = None, misfits: Sequence[Misfit] = ()) -> None:
        super().__init__(message, hint=hint)
        self.misfits = tuple(misfits)

    @classmethod
    def unfit(cls, misfits: Sequence[Misfit]) -> PatchRejected:
        listed = "; ".join(map(str, misfits[:_MISFITS_SHOWN]))
        more = f"; and {len(misfits) - _MISFITS_SHOWN} more" if len(misfits) > _MISFITS_SHOWN else ""
        hint = "read the file again and send the whole patch with its current lines"
        return cls(f"the patch does not apply and nothing was changed: {listed}{more}", hint=hint, misfits=misfits)
