"""AutoGen: the executor by itself; an agent with a scripted model is on the page."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.helpers import cancel_at_every_await

pytest.importorskip("autogen_core")


async def test_autogen() -> None:
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock

    from warmcell.interfaces.seats.autogen import WarmcellCodeExecutor

    async with WarmcellCodeExecutor(timeout=30) as executor:
        token = CancellationToken()
        blocks = [CodeBlock("x = 42", "python"), CodeBlock("echo from the shell > a", "sh")]
        assert (await executor.execute_code_blocks(blocks, token)).exit_code == 0
        blocks = [
            CodeBlock("print(x, open('a').read())", "python"),
            CodeBlock("exit 3", "sh"),
            CodeBlock("1/0", "python"),
        ]
        result = await executor.execute_code_blocks(blocks[:1], token)
        assert (result.exit_code, result.output) == (0, "42 from the shell\n\n")
        assert "ZeroDivisionError" in (await executor.execute_code_blocks(blocks[2:], token)).output
        await executor.restart()
        assert "NameError" in (await executor.execute_code_blocks(blocks[:1], token)).output


async def test_a_run_may_take_as_long_as_the_executor_says() -> None:
    """It was ended after 300 s."""
    from warmcell.interfaces.seats.autogen import WarmcellCodeExecutor

    async with WarmcellCodeExecutor(timeout=600) as executor:
        await executor.start()
        assert executor._tools["run_code"].parameters["properties"]["timeout_secs"]["default"] == 600


async def test_no_sandbox_is_lost_by_starts_at_once_or_a_cancelled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmcell.interfaces.seats import autogen

    sandboxes: set[object] = set()

    class Sandbox:
        def __init__(self, **_: object) -> None:
            sandboxes.add(self)
            self._async = SimpleNamespace(tools=lambda **_: [])

        def destroy(self) -> None:
            sandboxes.discard(self)

    monkeypatch.setattr(autogen, "Sandbox", Sandbox)
    executor = autogen.WarmcellCodeExecutor()
    await asyncio.gather(executor.start(), executor.start())
    assert len(sandboxes) == 1
    await executor.stop()
    async for _ in cancel_at_every_await(executor.start):
        await executor.stop()
        assert not sandboxes
