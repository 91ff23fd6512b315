"""The seat in Google's ADK: `Agent(code_executor=WarmcellCodeExecutor())`."""

from __future__ import annotations

import base64
from typing import Any

from warmcell.interfaces.seats.missing import framework_missing
from warmcell.sandbox.blocking import Sandbox

try:
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
    from pydantic import PrivateAttr
except ImportError as error:
    raise framework_missing("google-adk", error) from error

_MOST_FILES = 20
_DEFAULT_TIMEOUT = 60


class WarmcellCodeExecutor(BaseCodeExecutor):
    """Each call runs in a fresh sandbox; its input files are there, and the files that it made come back."""

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, *, sandbox: dict[str, Any] | None = None, **fields: Any) -> None:
        """`sandbox`: settings of the `Sandbox` that each call gets."""
        super().__init__(**fields)
        self._settings = dict(sandbox or {})

    def execute_code(self, invocation_context: Any, code_execution_input: CodeExecutionInput) -> CodeExecutionResult:
        with Sandbox(**self._settings) as sandbox:
            for file in code_execution_input.input_files:
                content = file.content if isinstance(file.content, bytes) else base64.b64decode(file.content)
                sandbox.write_file(file.name, content)
            before = {change.path for change in sandbox.diff()}
            timeout = self.timeout_seconds or _DEFAULT_TIMEOUT
            answer = sandbox.tools(stateful=False).call(
                "run_code", {"code": code_execution_input.code, "language": "python", "timeout_secs": timeout}
            )
            made = [change.path for change in sandbox.diff() if change.kind != "deleted" and change.path not in before]
            files = [
                File(name=path, content=sandbox.read_file(path), mime_type="application/octet-stream")
                for path in made[:_MOST_FILES]
                if not path.startswith(".tool-output") and sandbox.stat(path).is_file
            ]
        return CodeExecutionResult(
            stdout=answer.get("stdout", ""),
            stderr=answer["stderr"] if answer.get("exit_code", 1) else "",
            output_files=files,
            exit_code=answer.get("exit_code"),
        )
