"""The seat in PydanticAI: a `WorkspaceBackend` in the cage. File operations go through its shell."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from warmcell.core.errors import ExecutionTimeout, SandboxDestroyed, SessionEnded
from warmcell.core.types import ExecResult
from warmcell.interfaces.seats.cage_commands import CageCommands
from warmcell.interfaces.seats.missing import framework_missing
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.blocking import Sandbox

try:
    from pydantic_ai.workspaces.protocol import (
        CommandResult,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
        validate_timeout,
    )
except ImportError as error:
    raise framework_missing("pydantic-ai", error) from error

_WORK = "/work"
_A_DAY = 86_400.0
#: A ref names a sandbox of this process: it lives until somebody destroys it or the process ends.
_alive: dict[str, CageCommands] = {}


class WarmcellWorkspace:
    """Made without input or output; the first operation makes a sandbox of these settings, or finds that of `ref`."""

    def __init__(self, ref: WorkspaceRef | None = None, **settings: Any) -> None:
        self._ref = ref
        self._settings = settings
        self._making: asyncio.Lock | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        await self._commands()
        return _WORK

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if isinstance(command, str) != shell:
            raise TypeError("a string needs shell=True, and a list of words shell=False")
        validate_timeout(timeout)
        commands = await self._commands()
        try:
            result = await portal.reach(commands.run, command, cwd=_WORK, env=env, timeout=timeout or _A_DAY)
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
        """As the cage sees it, whatever is missing; a loop of links is an `OSError`."""
        found = await self.run(["realpath", "-m", "-z", "--", path])
        if found.exit_code:
            raise OSError(errno.ELOOP, "cannot be resolved", path)
        return found.stdout.rstrip("\0")

    async def destroy(self) -> None:
        """For whoever holds it: ends all that runs in it and removes its files."""
        commands = _alive.pop(self._ref.id, None) if self._ref is not None else None
        if commands is not None:
            await in_thread(commands.sandbox.destroy)

    async def _commands(self) -> CageCommands:
        self._making = self._making or asyncio.Lock()
        async with self._making:
            if self._ref is None:
                made = CageCommands(await in_thread(partial(Sandbox, **self._settings)))
                _alive[made.sandbox.id] = made
                self._ref = WorkspaceRef(provider="warmcell", id=made.sandbox.id)
        found = _alive.get(self._ref.id)
        if found is None:
            raise WorkspaceUnavailableError("this sandbox is gone, or another process's")
        return found
