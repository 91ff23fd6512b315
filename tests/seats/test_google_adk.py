"""Google ADK: the executor by itself, and an agent with their tools over our environment and a scripted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk")


def test_google_adk() -> None:
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File

    from warmcell.interfaces.seats.google_adk import WarmcellCodeExecutor

    executor = WarmcellCodeExecutor(timeout_seconds=30)
    code = "print(open('in.csv').read()); open('out.txt', 'w').write('made')"
    given = CodeExecutionInput(code=code, input_files=[File(name="in.csv", content=b"a,b")])
    result = executor.execute_code(None, given)
    assert (result.stdout, result.stderr, result.exit_code) == ("a,b\n", "", 0)
    assert [(file.name, file.content) for file in result.output_files] == [("out.txt", b"made")]
    # A link, and a file that its owner may not read, ended the agent's run with an exception.
    code = "import os; os.symlink('out.txt', 'a'); open('out.txt', 'w').write('made'); open('b', 'w'); os.chmod('b', 0)"
    result = executor.execute_code(None, CodeExecutionInput(code=code))
    assert result.exit_code == 0 and ("out.txt", b"made") in [(file.name, file.content) for file in result.output_files]
    assert "a" not in [file.name for file in result.output_files]
    failed = executor.execute_code(None, CodeExecutionInput(code="1/0"))
    assert "ZeroDivisionError" in failed.stderr
    assert failed.exit_code == 1


def test_google_adk_runs_may_be_long() -> None:
    """Every run was refused: the timeout was out of the tool's range."""
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput

    from warmcell.interfaces.seats.google_adk import WarmcellCodeExecutor

    result = WarmcellCodeExecutor(timeout_seconds=600).execute_code(None, CodeExecutionInput(code="print(1)"))
    assert (result.stdout, result.exit_code) == ("1\n", 0)


async def test_google_adk_environment() -> None:
    """An agent of theirs, with their tools over our environment, and a scripted model."""
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
        for seconds in (1, 5, 25, 125):  # a starved host may not have printed by then
            late = await environment.execute("echo begun; sleep 100000", timeout=seconds)
            if late.stdout:
                break
        assert (late.timed_out, late.stdout) == (True, "begun\n")
    await environment.close()
    with pytest.raises(RuntimeError, match="initialize"):
        await environment.execute("true")
