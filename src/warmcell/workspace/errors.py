"""What host-side file access refuses or cannot do.

Leaving the workspace, links and special files are `PathTraversal` of the core tree; these are the everyday rest.
Those that Python developers know by another name can be caught by that name too.
"""

from __future__ import annotations

from warmcell.core.errors import SandboxError


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


class PatchRejected(SandboxError):
    """A patch is malformed, does not apply, or reaches for something that patches may not touch. Nothing changed."""

    code = "sandbox.patch_rejected"
    fault = "caller"
