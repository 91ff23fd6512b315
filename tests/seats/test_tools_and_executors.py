"""The other seats, each driven by its framework with a model that is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from warmcell import Sandbox


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


async def test_langchain(sandbox: Sandbox) -> None:
    pytest.importorskip("langchain_core")
    from warmcell.interfaces.seats.langchain import sandbox_tools

    tools = {tool.name: tool for tool in sandbox_tools(sandbox)}
    assert json.loads(tools["write_file"].invoke({"path": "a", "content": "x"}))["size"] == 1
    assert json.loads(await tools["run_code"].ainvoke({"code": "open('a').read()"}))["value"] == "'x'"
    call = {"name": "run_code", "args": {"code": "6 * 7"}, "id": "1", "type": "tool_call"}
    assert json.loads(tools["run_code"].invoke(call).content)["value"] == "42"
    assert json.loads(tools["read_file"].invoke({"path": "/etc/passwd"}))["status"] == "error"


async def test_openai_agents(sandbox: Sandbox) -> None:
    pytest.importorskip("agents")
    from agents import Agent, ModelResponse, Runner, Usage, set_tracing_disabled
    from agents.models.interface import Model
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from warmcell.interfaces.seats.openai_agents import sandbox_tools

    class Scripted(Model):
        seen: list[Any]

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            self.seen = input
            if isinstance(input, str) or len(input) == 1:
                arguments = json.dumps({"code": "print(6 * 7)"})
                item: Any = ResponseFunctionToolCall(
                    arguments=arguments, call_id="1", name="run_code", type="function_call"
                )
            else:
                text = ResponseOutputText(annotations=[], text="done", type="output_text")
                item = ResponseOutputMessage(
                    id="2", content=[text], role="assistant", status="completed", type="message"
                )
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    set_tracing_disabled(True)
    model = Scripted()
    result = await Runner.run(Agent(name="a", model=model, tools=sandbox_tools(sandbox)), "compute")
    assert result.final_output == "done"
    assert json.loads(model.seen[-1]["output"])["stdout"] == "42\n"


def test_smolagents() -> None:
    pytest.importorskip("smolagents")
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


async def test_autogen() -> None:
    pytest.importorskip("autogen_core")
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


def test_google_adk() -> None:
    pytest.importorskip("google.adk")
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File

    from warmcell.interfaces.seats.google_adk import WarmcellCodeExecutor

    executor = WarmcellCodeExecutor(timeout_seconds=30)
    code = "print(open('in.csv').read()); open('out.txt', 'w').write('made')"
    given = CodeExecutionInput(code=code, input_files=[File(name="in.csv", content=b"a,b")])
    result = executor.execute_code(None, given)
    assert (result.stdout, result.stderr, result.exit_code) == ("a,b\n", "", 0)
    assert [(file.name, file.content) for file in result.output_files] == [("out.txt", b"made")]
    failed = executor.execute_code(None, CodeExecutionInput(code="1/0"))
    assert "ZeroDivisionError" in failed.stderr
    assert failed.exit_code == 1
