"""smolagents: a code agent with a scripted model."""

from __future__ import annotations

import base64
import io
from types import SimpleNamespace
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


@pytest.mark.parametrize(("kind", "is_image"), [("PNG", True), ("JPEG", True), ("GIF", False), ("", False)])
def test_an_image_is_of_the_kind_that_it_claims(kind: str, is_image: bool) -> None:
    import PIL.Image

    from warmcell.interfaces.seats.smolagents import _value

    file = io.BytesIO()
    if kind:
        PIL.Image.new("RGB", (1, 1)).save(file, kind)
    data = base64.b64encode(file.getvalue() or b"no image").decode()
    cell = SimpleNamespace(outputs=[SimpleNamespace(mime={"image/png": data}, is_result=True)], value="text")
    found = _value(cell)
    assert isinstance(found, PIL.Image.Image) if is_image else found == "text"
