"""SandboxTool over the real process backend: what an agent's author gets on the first day."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.helpers import require

from warmcell import EnforcerUnavailable, ProcessBackend, SandboxPolicyBuilder, SandboxTool


@pytest.fixture
async def tool() -> AsyncIterator[SandboxTool]:
    try:
        backend = ProcessBackend.with_sandbox()
    except EnforcerUnavailable as error:
        require(False, str(error))
    yield SandboxTool(backend, memory_limit_mb=64)
    await backend.aclose()


async def test_what_a_model_is_told_is_what_holds(tool: SandboxTool) -> None:
    assert "no network access" in tool.description
    offered = tool.parameters_schema()["properties"]["language"]["enum"]
    assert {"python", "command"} <= set(offered) and "wasm" not in offered


async def test_success(tool: SandboxTool) -> None:
    answer = await tool.execute({"language": "python", "code": "print(int(input()) * 7)", "stdin": "6"})
    assert (answer["status"], answer["stdout"], answer["exit_code"]) == ("success", "42\n", 0)
    assert answer["duration_ms"] >= 0
    json.dumps(answer)


async def test_a_failing_program(tool: SandboxTool) -> None:
    answer = await tool.execute({"language": "command", "code": "echo no >&2; exit 42"})
    assert (answer["status"], answer["stderr"], answer["exit_code"]) == ("success", "no\n", 42)


async def test_two_mebibytes_of_output(tool: SandboxTool) -> None:
    answer = await tool.execute({"language": "python", "code": "print('H' + 'x' * (2 << 20))"})
    assert answer["truncated"] is True
    assert answer["stdout"].startswith("H")
    assert len(answer["stdout"]) < 31_000


@pytest.mark.claim("WC-RX-1")
async def test_a_timeout(tool: SandboxTool) -> None:
    code = "print('so far', flush=True)\nwhile True: pass"
    answer = await tool.execute({"language": "python", "code": code, "timeout_secs": 1})
    assert (answer["status"], answer["stdout"]) == ("timeout", "so far\n")
    assert "timed out" in answer["stderr"]


@pytest.mark.attack("RX-02")
async def test_memory(tool: SandboxTool) -> None:
    answer = await tool.execute({"language": "python", "code": "import time\nx = bytearray(300 << 20)\ntime.sleep(20)"})
    assert answer["status"] == "memory_exceeded"
    assert "64 MB" in answer["stderr"]


@pytest.mark.attack("LK-11")
async def test_a_traceback_shows_the_guests_world_only(tool: SandboxTool, repository: object) -> None:
    answer = await tool.execute({"language": "python", "code": "import json; json.loads('{')"})
    assert answer["exit_code"] == 1
    assert "JSONDecodeError" in answer["stderr"]
    assert str(repository) not in answer["stderr"]


async def test_wasm_points_at_its_own_backend(tool: SandboxTool) -> None:
    answer = await tool.execute({"language": "wasm", "code": "(module)"})
    assert answer["status"] == "error"
    assert "WasmBackend" in answer["stderr"]


def test_rules_by_domain_are_not_called_no_network() -> None:
    policy = SandboxPolicyBuilder().allow_domain("example.com").allow_domain("x.org", [8443]).build()
    with ProcessBackend(policy=policy) as backend:
        assert "with network access to example.com, x.org:8443 only" in SandboxTool(backend).description
    with ProcessBackend() as backend:
        assert "with no network access" in SandboxTool(backend).description


async def test_a_language_without_its_toolchain_is_not_offered(
    tool: SandboxTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "rust" not in tool.parameters_schema()["properties"]["language"]["enum"]
    assert "rust" not in tool.description
    answer = await tool.execute({"language": "rust", "code": "fn main() {}"})
    assert answer["status"] == "error" and "rustup" in answer["stderr"]
