"""The seat in smolagents: `CodeAgent(..., executor=WarmcellExecutor())`. Variables stay from step to step."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.seats.missing import framework_missing
from warmcell.sandbox.blocking import Sandbox

try:
    import PIL.Image
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.tools import get_tools_definition_code
    from smolagents.utils import AgentError
except ImportError as error:
    raise framework_missing("smolagents", error) from error

#: What the framework sends imports PIL and numpy at its top, used or not.
_IMPORT = re.compile(r"^import ([\w.]+)$", re.MULTILINE)


class WarmcellExecutor(RemotePythonExecutor):
    """Runs an agent's Python in a session of a sandbox. Without one of your own it makes one of these settings.

    Tools are sent as source, answers come back as JSON: nothing that the guest said is unpickled. There is no network
    to install packages from: put what tools need into `Sandbox(config=ProcessConfig(python_path=...))`.
    """

    def __init__(self, sandbox: Sandbox | None = None, *, timeout: float = 60, **settings: Any) -> None:
        self._is_ours = sandbox is None
        self.sandbox = sandbox or Sandbox(**settings)
        self._session = self.sandbox.session("python")
        self._timeout = timeout
        super().__init__([], AgentLogger(level=LogLevel.ERROR), allow_pickle=False)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        try:
            cell = self._session.run(code, timeout=self._timeout)
        except SandboxError as error:
            raise AgentError(str(error), self.logger) from None
        if cell.error is not None and cell.error.name.rpartition(".")[2] == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(cell.error.message, allow_pickle=False)
            return CodeOutput(output=answer, logs=cell.stdout, is_final_answer=True)
        if cell.error is not None:
            shown = cell.error.traceback or str(cell.error)
            raise AgentError(f"{cell.stdout}\nExecuting code yielded an error:\n{shown}", self.logger)
        return CodeOutput(output=_value(cell), logs=cell.stdout, is_final_answer=False)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Their source, in which what cannot be imported is missed where it is used and not before."""
        if "final_answer" in tools:
            self._patch_final_answer_with_exception(tools["final_answer"])
        code = get_tools_definition_code(tools)
        self.run_code_raise_errors(_IMPORT.sub(r"try:\n    import \1\nexcept ImportError:\n    pass", code))

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Nothing is installed: what is there is what the sandbox's Python has."""
        return list(additional_imports)

    def cleanup(self) -> None:
        self._session.close()
        if self._is_ours:
            self.sandbox.destroy()

    delete = cleanup


def _value(cell: Any) -> Any:
    """The last line's value: an image as one, the rest as text."""
    for item in cell.outputs:
        data = item.mime.get("image/png") or item.mime.get("image/jpeg")
        if item.is_result and isinstance(data, str):
            return PIL.Image.open(io.BytesIO(base64.b64decode(data)))
    return cell.value
