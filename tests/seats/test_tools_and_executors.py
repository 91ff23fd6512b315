"""The other seats, each driven by its framework with a model that is scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
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


async def test_google_adk_environment() -> None:
    """An agent of theirs, with their tools over our environment, and a scripted model."""
    pytest.importorskip("google.adk")
    from google.adk.agents import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.adk.tools.environment import EnvironmentToolset
    from google.genai import types

    from warmcell.interfaces.seats.google_adk import WarmcellEnvironment

    steps = iter(
        [
            types.Part.from_function_call(name="WriteFile", args={"path": "sub/a.txt", "content": "from the model"}),
            types.Part.from_function_call(name="Execute", args={"command": "cat sub/a.txt; pwd; exit 3"}),
            types.Part.from_text(text="done"),
        ]
    )
    seen: list[Any] = []

    class Scripted(BaseLlm):
        async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
            seen.extend(part.function_response for part in request.contents[-1].parts if part.function_response)
            yield LlmResponse(content=types.Content(role="model", parts=[next(steps)]))

    environment = WarmcellEnvironment()
    toolset = EnvironmentToolset(environment=environment)
    agent = LlmAgent(name="coder", model=Scripted(model="scripted"), tools=[toolset])
    async with InMemoryRunner(agent) as runner:
        events = await runner.run_debug("go", quiet=True)
        assert events[-1].content.parts[0].text == "done"
        told = str(seen[-1].response)
        assert "from the model" in told and "/work" in told
        assert await environment.read_file(Path("sub/a.txt")) == b"from the model"
        with pytest.raises(FileNotFoundError):
            await environment.read_file(Path("none"))
        late = await environment.execute("echo begun; sleep 60", timeout=1)
        assert (late.timed_out, late.stdout) == (True, "begun\n")
    await environment.close()
    with pytest.raises(RuntimeError, match="initialize"):
        await environment.execute("true")


async def test_openai_sandbox_agent() -> None:
    """Their sandbox agent, with its shell in our cage and a scripted model."""
    pytest.importorskip("agents.sandbox")
    from agents import ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
    from agents.models.interface import Model
    from agents.run_config import SandboxRunConfig
    from agents.sandbox import Manifest, SandboxAgent
    from agents.sandbox.capabilities import Shell
    from agents.sandbox.entries import File
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from warmcell.interfaces.seats import openai_sandbox

    class Scripted(Model):
        seen: Any = None

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            is_first, self.seen = self.seen is None, input
            arguments = json.dumps({"cmd": "cat given.txt; pwd; ls /"})
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            item: Any = (
                ResponseFunctionToolCall(arguments=arguments, call_id="1", name="exec_command", type="function_call")
                if is_first
                else ResponseOutputMessage(id="2", content=[text], role="assistant", status="completed", type="message")
            )
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    set_tracing_disabled(True)
    model = Scripted()
    agent = SandboxAgent(
        name="coder",
        model=model,
        default_manifest=Manifest(entries={"given.txt": File(content=b"for the model\n")}),
        capabilities=[Shell()],
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=openai_sandbox.WarmcellSandboxClient()))
    result = await Runner.run(agent, "go", run_config=config)
    assert result.final_output == "done"
    assert "for the model\n/work\n" in str(model.seen[-1]["output"])
    assert not openai_sandbox._alive


async def test_openai_sandbox_sessions() -> None:
    pytest.importorskip("agents.sandbox")
    import io

    from agents.sandbox.errors import ExecTimeoutError, InvalidManifestPathError, WorkspaceReadNotFoundError

    from warmcell.interfaces.seats.openai_sandbox import WarmcellSandboxClient, WarmcellSandboxOptions

    client = WarmcellSandboxClient()
    first = await client.create(options=WarmcellSandboxOptions(exposed_ports=(8000,)))
    second = await client.create()
    try:
        await first.start()
        await second.start()
        await first.write(Path("sub/a.bin"), io.BytesIO(b"\0one"))
        assert (await first.read(Path("/work/sub/a.bin"))).read() == b"\0one"
        assert {Path(entry.path).name for entry in await first.ls(".")} == {"sub"}
        ran = await first.exec("cat sub/a.bin; echo $HOME >&2; exit 3")
        assert (ran.stdout, ran.stderr, ran.exit_code) == (b"\0one", b"/home/sandbox\n", 3)
        with pytest.raises(WorkspaceReadNotFoundError):
            await first.read(Path("none"))
        with pytest.raises(ExecTimeoutError):
            await first.exec("sleep 60", timeout=1)
        await first.exec("ln -s /etc/passwd link")
        with pytest.raises(InvalidManifestPathError):
            await first.read(Path("link"))
        await first.exec("rm link")
        await second.hydrate_workspace(await first.persist_workspace())
        assert (await second.read(Path("sub/a.bin"))).read() == b"\0one"
        assert (await first.resolve_exposed_port(8000)).host == "127.0.0.1"
        again = await client.resume(client.deserialize_session_state(client.serialize_session_state(first.state)))
        await again.start()
        assert (await again.read(Path("sub/a.bin"))).read() == b"\0one"
    finally:
        await client.delete(first)
        await client.delete(second)
    assert not await first.running()
