"""AutoGen: a `CodeExecutor`. Files persist between blocks; Python keeps its variables until `restart`."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import TIMED_OUT
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.blocking import Sandbox

with framework("autogen"):
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult


class WarmcellCodeExecutor(CodeExecutor):
    """Runs blocks in order until one fails. `start` makes a sandbox with these settings, `stop` destroys it."""

    def __init__(self, *, timeout: float = 60, **settings: Any) -> None:
        self._timeout = timeout
        self._settings = settings
        self._sandbox: Sandbox | None = None
        self._tools: Any = None

    async def start(self) -> None:
        if self._sandbox is not None:
            return
        made = await in_thread(lambda: Sandbox(timeout=self._timeout, **self._settings), discard=Sandbox.destroy)
        if self._sandbox is not None:  # another call was faster
            await in_thread(made.destroy)
            return
        self._sandbox, self._tools = made, made._async.tools(max_timeout=math.ceil(self._timeout))

    async def stop(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await in_thread(sandbox.destroy)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        await self.start()
        output = ""
        for block in code_blocks:
            task = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(task)
            exit_code, text = await task
            output += text
            if exit_code:
                return CodeResult(exit_code=exit_code, output=output)
        return CodeResult(exit_code=0, output=output)

    async def _run(self, block: CodeBlock) -> tuple[int, str]:
        arguments = {"code": block.code, "language": block.language or "python"}
        answer = await portal.call_async(self._tools.call, "run_code", arguments)
        exit_code = {"success": answer.get("exit_code", 0), "timeout": TIMED_OUT}.get(answer["status"], 1)
        return exit_code, answer.get("stdout", "") + answer.get("stderr", "")
