"""deepagents and LangChain: `create_deep_agent(backend=WarmcellSandbox())`."""

from __future__ import annotations

from typing import Any

from warmcell.core.door_text import explain
from warmcell.core.errors import ExecutionTimeout, SandboxError
from warmcell.core.types import ExecResult
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import TIMED_OUT, CageCommands
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

with framework("deepagents"):
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox


class WarmcellSandbox(BaseSandbox):
    """A sandbox for a deep agent. Without `sandbox` it makes one with these settings, which `close` destroys."""

    def __init__(self, sandbox: Sandbox | None = None, *, timeout: float = 120, **settings: Any) -> None:
        self._is_ours = sandbox is None
        self._commands = CageCommands(sandbox or Sandbox(**settings))
        self._timeout = timeout

    @property
    def id(self) -> str:
        return self._commands.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        try:
            result = portal.call(self._commands.run, command, timeout=timeout or self._timeout)
        except ExecutionTimeout as error:
            partial = error.result or ExecResult()
            return ExecuteResponse(_output(partial) + f"\n{error.message}", TIMED_OUT, partial.stdout_truncated)
        except SandboxError as error:
            return ExecuteResponse(explain(error), None)
        return ExecuteResponse(_output(result), result.exit_code, result.stdout_truncated or result.stderr_truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def close(self) -> None:
        if self._is_ours:
            self._commands.sandbox.destroy()

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            _check_path(path)
            portal.call(self._commands.write, path, content)
        except OSError as error:
            return _error_code(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            _check_path(path)
            return FileDownloadResponse(path, portal.call(self._commands.read, path))
        except OSError as error:
            return FileDownloadResponse(path, None, _error_code(error))


def _check_path(path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise NotADirectoryError


def _output(result: ExecResult) -> str:
    separator = "\n" if result.stdout and result.stderr and not result.stdout.endswith("\n") else ""
    return f"{result.stdout}{separator}{result.stderr}"


def _error_code(error: OSError) -> str:
    """The code of deepagents for an error that a model can act on."""
    codes = {
        FileNotFoundError: "file_not_found",
        PermissionError: "permission_denied",
        IsADirectoryError: "is_directory",
        NotADirectoryError: "invalid_path",
    }
    return codes.get(type(error), str(error.strerror or error))
