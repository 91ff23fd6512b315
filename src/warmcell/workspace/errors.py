"""What host-side file access refuses or cannot do.

Leaving the workspace, links and special files are `PathTraversal` of the core tree; these are the everyday rest.
Those that Python developers know by another name can be caught by that name too.
"""

from __future__ import annotations

from collections.abc import Sequence

from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass

_MISFITS_TOLD = 10


class WorkspaceError(SandboxError):
    """A file operation on the workspace failed. `path` is what the caller gave."""

    code = "sandbox.workspace_error"
    fault = "caller"

    def __init__(self, path: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path!r} {reason}", hint=hint)
        self.path = path


class FileMissing(WorkspaceError, FileNotFoundError):
    """Nothing is there."""

    code = "sandbox.file_not_found"

    def __init__(self, path: str, reason: str = "does not exist") -> None:
        super().__init__(path, reason)


class AlreadyExists(WorkspaceError, FileExistsError):
    """Something is there already."""

    code = "sandbox.file_exists"

    def __init__(self, path: str, reason: str = "exists already") -> None:
        super().__init__(path, reason)


class AccessDenied(WorkspaceError, PermissionError):
    """The guest, or whoever owns it, closed it to us."""

    code = "sandbox.access_denied"

    def __init__(self, path: str, reason: str = "may not be used: its permissions forbid it") -> None:
        super().__init__(path, reason, hint="change its mode inside the sandbox")


class WrongKind(WorkspaceError):
    """A directory where a file is needed, or the other way round."""

    code = "sandbox.wrong_file_kind"


class LimitExceeded(WorkspaceError):
    """More bytes, entries or depth than the operation was given. Nothing that it would have made is left."""

    code = "sandbox.limit_exceeded"

    def __init__(self, path: str, reason: str, *, limit: int, hint: str | None = None) -> None:
        super().__init__(path, reason, hint=hint)
        self.limit = limit


class ArchiveRejected(SandboxError):
    """An archive holds something that is never unpacked. Nothing was written."""

    code = "sandbox.archive_rejected"
    fault = "caller"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A part of a patch that does not fit: the file, the hunk's number in it and its header (None: the whole file)."""

    path: str
    hunk: int | None
    header: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r}{f', hunk {self.hunk} ({self.header})' if self.hunk else ''}: {self.reason}"


class PatchRejected(SandboxError):
    """A patch is malformed, does not apply, or reaches for something that patches may not touch. Nothing changed.

    `misfits` are all parts of a well-formed patch that do not fit the files.
    """

    code = "sandbox.patch_rejected"
    fault = "caller"

    def __init__(self, message: str, *, hint: str | None = None, misfits: Sequence[Misfit] = ()) -> None:
        super().__init__(message, hint=hint)
        self.misfits = tuple(misfits)

    @classmethod
    def unfit(cls, misfits: Sequence[Misfit]) -> PatchRejected:
        told = "; ".join(map(str, misfits[:_MISFITS_TOLD]))
        more = f"; and {len(misfits) - _MISFITS_TOLD} more" if len(misfits) > _MISFITS_TOLD else ""
        hint = "read the file again and send the whole patch with its lines as they are now"
        return cls(f"the patch does not fit and nothing was changed: {told}{more}", hint=hint, misfits=misfits)
