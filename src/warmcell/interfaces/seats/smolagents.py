"""smolagents: `CodeAgent(..., executor=WarmcellExecutor())`. Variables persist between steps."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.seats import framework
from warmcell.sandbox.blocking import Sandbox

with framework("smolagents"):
    import PIL.Image
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.tools import get_tools_definition_code
    from smolagents.utils import AgentError

#: The code that the framework sends imports PIL and numpy, used or not.
_IMPORT = re.compile(r"^import ([\w.]+)$", re.MULTILINE)


class WarmcellExecutor(RemotePythonExecutor):
    """Runs an agent's Python in a session of a sandbox. Without `sandbox` it makes one with these settings.

    Tools are sent as source and answers are received as JSON, never unpickled. No packages are installed: use
    `Sandbox(config=ProcessConfig(python_path=...))` with a Python that has what the tools need.
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
        """Send the tools' source. A failed import becomes an error only where the module is used."""
        if "final_answer" in tools:
            self._patch_final_answer_with_exception(tools["final_answer"])
        code = get_tools_definition_code(tools)
        self.run_code_raise_errors(_IMPORT.sub(r"try:\n    import \1\nexcept ImportError:\n    pass", code))

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Does nothing: the sandbox's Python must have the packages."""
        return list(additional_imports)

    def cleanup(self) -> None:
        self._session.close()
        if self._is_ours:
            self.sandbox.destroy()

    delete = cleanup


def _value(cell: Any) -> Any:
    """The value of the last line: an image, or text."""
    for item in cell.outputs:
        data = item.mime.get("image/png") or item.mime.get("image/jpeg")
        image = _open_image(data) if item.is_result and isinstance(data, str) else None
        if image is not None:
            return image
    return cell.value


def _open_image(data: str) -> Any:
    """The image, or None if it cannot be read.

    The guest made it and says what it is. Without `formats` Pillow tries all that it knows, and for one of them
    (PostScript) it starts a program on the host.
    """
    try:
        return PIL.Image.open(io.BytesIO(base64.b64decode(data)), formats=("PNG", "JPEG"))
    except (ValueError, OSError, PIL.Image.DecompressionBombError):
        return None
