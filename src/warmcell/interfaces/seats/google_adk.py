"""Google's ADK: `Agent(code_executor=...)` and `EnvironmentToolset(environment=...)`."""

from __future__ import annotations

import base64
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from warmcell.core.errors import ExecutionTimeout, SandboxError
from warmcell.core.types import ExecResult
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import A_DAY, TIMED_OUT, WORK, CageCommands
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

with framework("google-adk"):
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
    from google.adk.environment import BaseEnvironment
    from google.adk.environment._base_environment import ExecutionResult
    from pydantic import PrivateAttr

_MOST_FILES = 20
_DEFAULT_TIMEOUT = 60


class WarmcellCodeExecutor(BaseCodeExecutor):
    """Runs each call in a fresh sandbox with its input files, and returns the files that it created."""

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, *, sandbox: dict[str, Any] | None = None, **fields: Any) -> None:
        """`sandbox`: settings of each call's `Sandbox`."""
        super().__init__(**fields)
        self._settings = dict(sandbox or {})

    def execute_code(self, invocation_context: Any, code_execution_input: CodeExecutionInput) -> CodeExecutionResult:
        with Sandbox(**self._settings) as sandbox:
            for file in code_execution_input.input_files:
                content = file.content if isinstance(file.content, bytes) else base64.b64decode(file.content)
                sandbox.write_file(file.name, content)
            before = {change.path for change in sandbox.diff()}
            timeout = self.timeout_seconds or _DEFAULT_TIMEOUT
            answer = sandbox.tools(stateful=False, max_timeout=timeout).call(
                "run_code", {"code": code_execution_input.code, "language": "python", "timeout_secs": timeout}
            )
            files = _read_new_files(sandbox, before)
        return CodeExecutionResult(
            stdout=answer.get("stdout", ""),
            stderr=answer["stderr"] if answer.get("exit_code", 1) else "",
            output_files=files,
            exit_code=answer.get("exit_code"),
        )


def _read_new_files(sandbox: Sandbox, before: Collection[str]) -> list[File]:
    """The files that the code has left. Those that cannot be read, such as too large ones, are left out."""
    files: list[File] = []
    with suppress(SandboxError):  # there are too many to list
        for change in sandbox.diff():
            is_new = change.kind != "deleted" and change.path not in before
            if is_new and change.entry == "file" and not change.path.startswith(".tool-output"):
                with suppress(SandboxError):
                    content = sandbox.read_file(change.path)
                    files.append(File(name=change.path, content=content, mime_type="application/octet-stream"))
            if len(files) == _MOST_FILES:
                break
    return files


class WarmcellEnvironment(BaseEnvironment):
    """Commands and files in one live cage. Background processes and `/tmp` persist until `close`."""

    def __init__(self, **settings: Any) -> None:
        """`settings`: of the `Sandbox` that `initialize` makes."""
        self._settings = settings
        self._commands: CageCommands | None = None

    @property
    def working_dir(self) -> Path:
        return Path(WORK)

    async def initialize(self) -> None:
        if self._commands is None:
            self._commands = await CageCommands.create(self._settings)
        self.is_initialized = True

    async def close(self) -> None:
        commands, self._commands, self.is_initialized = self._commands, None, False
        if commands is not None:
            await commands.destroy()

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        try:
            result = await portal.call_async(self._require_commands().run, command, timeout=timeout or A_DAY)
        except ExecutionTimeout as error:
            part = error.result or ExecResult()
            return ExecutionResult(TIMED_OUT, part.stdout, part.stderr, timed_out=True)
        return ExecutionResult(result.exit_code, result.stdout, result.stderr)

    async def read_file(self, path: Path) -> bytes:
        return await portal.call_async(self._require_commands().read, str(path))

    async def write_file(self, path: Path, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        await portal.call_async(self._require_commands().write, str(path), data)

    def _require_commands(self) -> CageCommands:
        if self._commands is None:
            raise RuntimeError("the environment is not initialized: await initialize() first")
        return self._commands
