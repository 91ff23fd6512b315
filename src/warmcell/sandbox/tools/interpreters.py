"""Stateful `run_code`: one interpreter per language, whose images are saved as files for the model."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any

from warmcell.core.door_text import cap
from warmcell.core.errors import MemoryExceeded, SandboxError, SessionEnded
from warmcell.core.types import ExecResult
from warmcell.sandbox.tools.answers import success
from warmcell.sandbox.tools.interface import ToolSandbox, ToolSession
from warmcell.sandbox.tools.saved_output import DIRECTORY
from warmcell.sessions.cell_results import CellResult, DisplayData

MAX_OUTPUTS = 20
_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_TEXTS = ("text/html", "text/markdown", "text/latex", "image/svg+xml", "text/plain")


class Interpreters:
    """The sessions of the tools of one sandbox. Each starts with its first call, and again after it ended."""

    def __init__(self, sandbox: ToolSandbox) -> None:
        self._sandbox = sandbox
        self._sessions: dict[str, ToolSession] = {}
        self._lock = asyncio.Lock()

    async def run(self, language: str, code: str, timeout: float, *, restart: bool, **listeners: Any) -> CellResult:
        async with self._lock:
            session = self._sessions.get(language)
            if session is not None and restart:
                del self._sessions[language]
                await session.close()
            if language not in self._sessions:
                self._sessions[language] = await self._sandbox.session(language)
            session = self._sessions[language]
        try:
            return await session.run(code, timeout=timeout, **listeners)
        except (SessionEnded, MemoryExceeded) as error:
            if self._sessions.get(language) is session:
                del self._sessions[language]
            error.hint = "the variables are lost; the next call starts a new interpreter"
            raise


def as_run(cell: CellResult) -> ExecResult:
    """A cell as a run: an exception becomes the end of stderr and exit code 1, as for a program."""
    raised = "" if cell.error is None else cell.error.traceback or str(cell.error)
    separator = "\n" if cell.stderr and raised and not cell.stderr.endswith("\n") else ""
    return ExecResult(
        stdout=cell.stdout,
        stderr=f"{cell.stderr}{separator}{raised}",
        exit_code=0 if cell.ok else 1,
        duration=cell.duration,
        stdout_truncated=cell.stdout_truncated,
        stderr_truncated=cell.stderr_truncated,
        usage=cell.usage,
        denials=cell.denials,
    )


async def answer_for(cell: CellResult, sandbox: ToolSandbox, max_text: int) -> dict[str, Any]:
    """As for a run, with the value of the last line and what was displayed: text inline, images as files."""
    answer = success(as_run(cell), max_text) | {"execution_count": cell.execution_count}
    if cell.value is not None:
        answer["value"] = cap(cell.value, max_text)[0]
    displayed = [item for item in cell.outputs if not item.is_result or set(item.mime) != {"text/plain"}]
    outputs = []
    for number, item in enumerate(displayed[:MAX_OUTPUTS], start=1):
        outputs.append(await _output(item, sandbox, f"{DIRECTORY}/cell-{cell.execution_count}-{number}", max_text))
    if outputs:
        answer["outputs"] = outputs
    if cell.outputs_truncated or len(displayed) > MAX_OUTPUTS:
        answer["truncated"] = True
    return answer


async def _output(item: DisplayData, sandbox: ToolSandbox, path: str, max_text: int) -> dict[str, Any]:
    for mime, suffix in _IMAGES.items():
        data = item.mime.get(mime)
        if isinstance(data, str):
            # The guest may have sent invalid base64, or put something in the way of the file.
            with contextlib.suppress(SandboxError, ValueError):
                await sandbox.write_file(f"{path}.{suffix}", base64.b64decode(data, validate=True))
                return {"mime": mime, "path": f"{path}.{suffix}"}
    mime, text = next(((name, item.mime[name]) for name in _TEXTS if name in item.mime), ("text/plain", ""))
    return {"mime": mime, "text": cap(text if isinstance(text, str) else str(text), max_text)[0]}
