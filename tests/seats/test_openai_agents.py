"""OpenAI Agents: our tools, and their sandbox agent over our client, each with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warmcell import Sandbox

pytest.importorskip("agents")
pytest.importorskip("agents.sandbox")


async def test_openai_agents(sandbox: Sandbox) -> None:
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


async def test_openai_sandbox_agent() -> None:
    """Their sandbox agent, with its shell in our cage and a scripted model."""
    from agents import ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
    from agents.models.interface import Model
    from agents.run_config import SandboxRunConfig
    from agents.sandbox import Manifest, SandboxAgent
    from agents.sandbox.capabilities import Shell
    from agents.sandbox.entries import File
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from warmcell.interfaces.seats import cage_commands, openai_sandbox

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
    assert not cage_commands._shared


async def test_openai_sandbox_sessions() -> None:
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
