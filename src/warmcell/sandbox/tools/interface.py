"""What the tools need of a sandbox, and of a session in it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from warmcell.backends.output_callbacks import OnText
from warmcell.core.types import BackendCapabilities, ExecResult
from warmcell.sandbox.ports import AsyncExposedPort
from warmcell.sessions.cell_results import CellResult
from warmcell.workspace.diff import FsChange
from warmcell.workspace.files import DirEntry


class ToolSession(Protocol):
    async def run(
        self, code: str, *, timeout: float, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> CellResult: ...
    async def close(self) -> None: ...


class ToolSandbox(Protocol):
    @property
    def timeout(self) -> float: ...
    def capabilities(self) -> BackendCapabilities: ...

    async def run(
        self,
        code: str,
        language: str,
        *,
        stdin: str | None,
        timeout: float,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult: ...

    async def sh(
        self,
        script: str,
        *,
        cwd: str,
        stdin: str | None,
        timeout: float,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult: ...

    async def read_file(self, path: str, /, *, max_bytes: int) -> bytes: ...
    async def write_file(self, path: str, data: str | bytes, /) -> None: ...
    async def list_dir(self, path: str, /) -> list[DirEntry]: ...
    async def remove(self, path: str, /) -> None: ...
    async def apply_patch(self, patch: str, /) -> list[FsChange]: ...
    async def expose(self, port: int) -> AsyncExposedPort: ...
    def session(self, language: str) -> Awaitable[ToolSession]: ...
