"""OpenHands: the contract of its workspaces, and a conversation whose agent runs commands in a cage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require
from tests.seats.model_server import model_server

if find_spec("openhands") is None:  # not installed by scripts/test-seats
    pytest.skip("openhands is not installed", allow_module_level=True)
#: Their first import compiles hundreds of modules, and a starved host takes minutes for it.
pytestmark = pytest.mark.timeout(1800)
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch a list of prices while it is imported


@pytest.fixture
def workspace() -> Iterator[Any]:
    from warmcell.interfaces.seats.openhands import WarmcellWorkspace

    with WarmcellWorkspace() as made:
        yield made


def test_commands(workspace: Any) -> None:
    found = workspace.execute_command("echo out; echo err >&2; [[ a == a ]] && exit 3")
    assert (found.stdout, found.stderr, found.exit_code, found.timeout_occurred) == ("out\n", "err\n", 3, False)
    workspace.execute_command("mkdir d; sleep 100000 & echo $! > d/pid")
    assert workspace.execute_command("kill -0 $(cat pid)", cwd="d").exit_code == 0
    for seconds in (1, 5, 25, 125):  # a starved host may not have printed by then
        late = workspace.execute_command("echo so far; sleep 100000", timeout=seconds)
        if late.stdout:
            break
    assert (late.stdout, late.exit_code, late.timeout_occurred) == ("so far\n", -1, True)


def test_files(workspace: Any, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"\0\xff")
    up = workspace.file_upload(tmp_path / "up", "new/up")
    assert (up.success, up.file_size) == (True, 2)
    assert workspace.file_download("/work/new/up", tmp_path / "down/up").success
    assert (tmp_path / "down/up").read_bytes() == b"\0\xff"
    missing = workspace.file_download("none", tmp_path / "none")
    assert not missing.success and "no such file" in missing.error


def test_git(workspace: Any) -> None:
    require(workspace.execute_command("git --version").exit_code == 0, "git is not installed")
    made = workspace.execute_command(
        "git init -q r && cd r && echo 1 > a && echo 1 > b && git add -A &&"
        " git -c user.name=a -c user.email=a@b commit -qm base && echo 2 > a && rm b && echo 3 > c"
    )
    assert made.exit_code == 0, made.stderr
    changes = {str(change.path): change.status.value for change in workspace.git_changes("r")}
    assert changes == {"a": "UPDATED", "b": "DELETED", "c": "ADDED"}
    for name, original, modified in (("a", "1\n", "2\n"), ("b", "1\n", None), ("c", None, "3\n")):
        found = workspace.git_diff(f"r/{name}")
        assert (found.original, found.modified) == (original, modified)
    with pytest.raises(RuntimeError, match="not a git repository"):
        workspace.git_changes("/tmp")


def test_a_conversation_with_a_scripted_model(tmp_path: Path) -> None:
    from openhands.sdk import LLM, Agent, Conversation, Tool

    from warmcell.interfaces.seats.openhands import CagedTerminalTool  # importing it registers it

    def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            seen.append(str(messages[-1]["content"]))
            return {"content": "done"}
        asked = {"command": "cat given; pwd; echo $((6 * 7)) > made; exit 3"}
        call = {"name": "caged_terminal", "arguments": json.dumps(asked)}
        return {"tool_calls": [{"id": "1", "type": "function", "function": call}]}

    (tmp_path / "project").mkdir()
    (tmp_path / "project/given").write_text("from the host\n")
    seen: list[str] = []
    with model_server(reply) as url:
        model = LLM(model="openai/scripted", base_url=url, api_key="none", usage_id="test")
        agent = Agent(llm=model, tools=[Tool(name=CagedTerminalTool.name, params={"memory_mb": 512})])
        conversation = Conversation(agent=agent, workspace=str(tmp_path / "project"), visualizer=None)
        try:
            conversation.send_message("Compute 6 * 7.")
            conversation.run()
        finally:
            conversation.close()
    assert len(seen) == 1 and all(part in seen[0] for part in ("from the host", "/work", "[exit status 3]")), seen
    assert (tmp_path / "project/made").read_text() == "42\n"


def test_a_closed_workspace_is_refused(workspace: Any) -> None:
    workspace.close()
    with pytest.raises(RuntimeError, match="was closed"):
        workspace.execute_command("true")
