"""PydanticAI: a `WorkspaceBackend` in a live cage. File operations use the cage's shell."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from typing import Any

from warmcell.core.errors import ExecutionTimeout, SandboxDestroyed, SessionEnded
from warmcell.core.types import ExecResult
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import (
    A_DAY,
    WORK,
    CageCommands,
    create_shared,
    destroy_shared,
    find_shared,
)
from warmcell.lifetime.portal import portal

with framework("pydantic-ai"):
    from pydantic_ai.workspaces.protocol import (
        CommandResult,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
        validate_timeout,
    )


class WarmcellWorkspace:
    """Uses the sandbox of `ref` in this process, or else one that the first operation makes with `settings`."""

    def __init__(self, ref: WorkspaceRef | None = None, **settings: Any) -> None:
        self._ref = ref
        self._settings = settings
        self._making: asyncio.Lock | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        await self._commands()
        return WORK

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if isinstance(command, str) != shell:
            raise TypeError("a string needs shell=True, a list shell=False")
        validate_timeout(timeout)
        commands = await self._commands()
        try:
            result = await portal.call_async(commands.run, command, cwd=WORK, env=env, timeout=timeout or A_DAY)
        except ExecutionTimeout as error:
            part = error.result or ExecResult()
            raise WorkspaceTimeoutError(error.message, stdout=part.stdout, stderr=part.stderr) from None
        except (SandboxDestroyed, SessionEnded) as error:
            raise WorkspaceUnavailableError(error.message) from None
        if result.stdout_truncated or result.stderr_truncated:
            limit, streams = len(result.stdout_bytes), {"stdout": result.stdout, "stderr": result.stderr}
            raise WorkspaceOutputLimitError("the command printed too much", limit=limit, **streams)
        return CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def realpath(self, path: str) -> str:
        """Resolve a path inside the cage; missing components are allowed. A loop of links raises `OSError`."""
        found = await self.run(["realpath", "-m", "-z", "--", path])
        if found.exit_code:
            raise OSError(errno.ELOOP, "cannot resolve the path", path)
        return found.stdout.rstrip("\0")

    async def destroy(self) -> None:
        """Destroy the sandbox with its processes and files."""
        if self._ref is not None:
            await destroy_shared(self._ref.id)

    async def _commands(self) -> CageCommands:
        self._making = self._making or asyncio.Lock()
        async with self._making:
            if self._ref is None:
                self._ref = WorkspaceRef(provider="warmcell", id=await create_shared(self._settings))
        found = find_shared(self._ref.id)
        if found is None:
            raise WorkspaceUnavailableError("the sandbox was destroyed or belongs to another process")
        return found
