"""Output that is too long for a model is saved in the work directory, where the model can read all of it."""

from __future__ import annotations

import contextlib
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.types import ExecResult
from warmcell.sandbox.tools.interface import ToolSandbox

DIRECTORY = ".tool-output"
#: Output is saved of this many runs, so that an agent that prints all day does not fill its disk.
MAX_SAVED_RUNS = 20


class SavedOutput:
    """Numbered files of the tools of one sandbox. The oldest are removed when there are too many."""

    def __init__(self, sandbox: ToolSandbox, max_text: int) -> None:
        self._sandbox = sandbox
        self._max_text = max_text
        self._number = 0
        self._saved: list[list[str]] = []

    async def save(self, result: ExecResult | None) -> dict[str, Any]:
        """`full_output`: the file of each stream that is too long. Streams that could not be saved are left out."""
        if result is None:
            return {}
        self._number += 1
        number, paths = self._number, {}
        for stream, text, raw in (
            ("stdout", result.stdout, result.stdout_bytes),
            ("stderr", result.stderr, result.stderr_bytes),
        ):
            if len(text) > self._max_text:
                path = f"{DIRECTORY}/{number}-{stream}.txt"
                # The guest may have put something in the way or filled the disk; then it loses the file.
                with contextlib.suppress(SandboxError):
                    await self._sandbox.write_file(path, raw)
                    paths[stream] = path
        await self._remove_oldest(list(paths.values()))
        return {"full_output": paths} if paths else {}

    async def _remove_oldest(self, paths: list[str]) -> None:
        if paths:
            self._saved.append(paths)
        while len(self._saved) > MAX_SAVED_RUNS:
            for path in self._saved.pop(0):
                with contextlib.suppress(SandboxError):
                    await self._sandbox.remove(path)
