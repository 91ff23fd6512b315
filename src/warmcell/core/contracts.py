"""SandboxBackend: the contract that backends of this and of other packages implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult


@runtime_checkable
class SandboxBackend(Protocol):
    """Runs requests.

    `execute` is called from any event loop, many calls at a time. It returns a result however the guest exits, raises
    `ExecutionTimeout` or `MemoryExceeded` (with the partial result) if a limit ended it, and any other `SandboxError`
    if the run could not be carried out. After it returns, raises or is cancelled, nothing of the run is left.
    `aclose` ends the runs in progress, may be called twice, and leaves nothing; runs that it ended, and `execute` after
    it, raise `BackendUnavailable`. A fork of the program may use its copy as if it were new.

    Our own backends also have `build` (see `backends.built.Program`), `run_many` and blocking forms of all. Callers
    that judge programs do without them where a backend has none.
    """

    @property
    def name(self) -> str: ...

    def capabilities(self) -> BackendCapabilities: ...

    async def execute(self, request: ExecRequest) -> ExecResult: ...

    async def aclose(self) -> None: ...
