"""Inspect: `Task(..., sandbox="warmcell")`. One sandbox per sample."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any

from warmcell.core.errors import ExecutionTimeout
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import A_DAY, WORK, CageCommands
from warmcell.lifetime.portal import portal

with framework("inspect-ai"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUserUnsupportedError,
        sandboxenv,
    )

#: The shell's status for a program that is not executable.
_NOT_EXECUTABLE = 126


@sandboxenv(name="warmcell")
class WarmcellSandboxEnvironment(SandboxEnvironment):
    """One sandbox. Relative paths start at /work."""

    def __init__(self, commands: CageCommands) -> None:
        super().__init__()
        self._commands = commands

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        return {"default": cls(await CageCommands.create({}))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls)._commands.destroy()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError(f"a Warmcell sandbox has one user; {user!r} is not supported")
        run = partial(self._commands.run, cmd, cwd=_absolute(cwd or "."), env=env, timeout=timeout or A_DAY)
        stdin = input.encode() if isinstance(input, str) else input
        try:
            result = await portal.call_async(run, stdin=stdin, max_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
        except ExecutionTimeout as error:
            raise TimeoutError(error.message) from None
        if result.stdout_truncated or result.stderr_truncated:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit_str=limit, truncated_output=result.stdout or result.stderr)
        if result.exit_code == _NOT_EXECUTABLE:
            raise PermissionError(errno.EACCES, result.stderr.strip() or "permission denied", cmd[0])
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await portal.call_async(self._commands.write, _absolute(file), data)

    async def read_file(self, file: str, text: bool = True) -> Any:
        max_bytes = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            raw = await portal.call_async(self._commands.read, _absolute(file), max_bytes)
        except OSError as error:
            if error.errno is None:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit_str=limit, truncated_output=None) from None
            raise
        return raw.decode() if text else raw


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"{WORK}/{path}"
