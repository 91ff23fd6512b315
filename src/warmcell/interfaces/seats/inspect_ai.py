"""The seat in Inspect: `Task(..., sandbox="warmcell")`. A sandbox for each sample, gone when it is scored."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any

from warmcell.core.errors import ExecutionTimeout
from warmcell.interfaces.seats.cage_commands import CageCommands
from warmcell.interfaces.seats.missing import framework_missing
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.blocking import Sandbox

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
except ImportError as error:
    raise framework_missing("inspect-ai", error) from error

_WORK = "/work"
_A_DAY = 86_400.0
_SHELLS_REFUSAL = 126


@sandboxenv(name="warmcell")
class WarmcellSandboxEnvironment(SandboxEnvironment):
    """One sandbox: a work directory at /work, which relative paths start from, and all that runs in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self._commands = CageCommands(sandbox)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        return {"default": cls(await in_thread(Sandbox))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await in_thread(environment.as_type(cls)._commands.sandbox.destroy)

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
            raise SandboxUserUnsupportedError(f"a Warmcell sandbox has one user, and {user!r} is not offered")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        run = partial(self._commands.run, cmd, cwd=_absolute(cwd or "."), env=env, timeout=timeout or _A_DAY, most=most)
        try:
            result = await portal.reach(run, stdin=input.encode() if isinstance(input, str) else input)
        except ExecutionTimeout as error:
            raise TimeoutError(error.message) from None
        if result.stdout_truncated or result.stderr_truncated:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit_str=limit, truncated_output=result.stdout or result.stderr)
        if result.exit_code == _SHELLS_REFUSAL:
            raise PermissionError(errno.EACCES, result.stderr.strip() or "permission denied", cmd[0])
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await portal.reach(self._commands.write, _absolute(file), data)

    async def read_file(self, file: str, text: bool = True) -> Any:
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            raw = await portal.reach(self._commands.read, _absolute(file), most)
        except OSError as error:
            if error.errno is None:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit_str=limit, truncated_output=None) from None
            raise
        return raw.decode() if text else raw


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"{_WORK}/{path}"
