"""smolagents: a code agent with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("smolagents")


def test_smolagents() -> None:
    from smolagents import CodeAgent
    from smolagents.models import ChatMessage, MessageRole, Model

    from warmcell.interfaces.seats.smolagents import WarmcellExecutor

    class Scripted(Model):
        steps = iter(["x = 40", "print(x)\nx / 0", "final_answer({'n': x + 2})"])

        def generate(self, *args: Any, **kwargs: Any) -> ChatMessage:
            code = next(self.steps)
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go\n<code>\n{code}\n</code>")

    executor = WarmcellExecutor()
    agent = CodeAgent(tools=[], model=Scripted(model_id="scripted"), executor=executor, verbosity_level=0)
    try:
        assert agent.run("compute") == {"n": 42}
        assert any(
            "ZeroDivisionError" in str(step.error) for step in agent.memory.steps if getattr(step, "error", None)
        )
    finally:
        executor.cleanup()
