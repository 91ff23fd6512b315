"""Output that is too long for a model stays, in full, in the work directory, where it can look at it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import SandboxError
from warmcell.core.types import ExecResult

if TYPE_CHECKING:
    from warmcell.sandbox.asynchronous import AsyncSandbox

DIRECTORY = ".tool-output"
#: Of so many runs the output is kept; an agent that prints all day must not fill its own disk.
MOST_RUNS = 20


class KeptOutput:
    """The files of one sandbox's tools, numbered; the oldest go when there are too many."""

    def __init__(self, sandbox: AsyncSandbox, max_text: int) -> None:
        self._sandbox = sandbox
        self._max_text = max_text
        self._number = 0
        self._kept: list[list[str]] = []

    async def keep(self, result: ExecResult | None) -> dict[str, Any]:
        """`full_output`: where each stream that is too long now lies. Where it cannot be kept, nothing is said."""
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
                # A guest may have put something in the way, or filled the disk: that is its own loss.
                with contextlib.suppress(SandboxError):
                    await self._sandbox.write_file(path, raw)
                    paths[stream] = path
        await self._forget_old(list(paths.values()))
        return {"full_output": paths} if paths else {}

    async def _forget_old(self, paths: list[str]) -> None:
        if paths:
            self._kept.append(paths)
        while len(self._kept) > MOST_RUNS:
            for path in self._kept.pop(0):
                with contextlib.suppress(SandboxError):
                    await self._sandbox.remove(path)
