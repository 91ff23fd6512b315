"""LangChain: the tools by themselves; an agent with a scripted model is on the page."""

from __future__ import annotations

import json

import pytest

from warmcell import Sandbox

pytest.importorskip("langchain_core")


async def test_langchain(sandbox: Sandbox) -> None:
    from warmcell.interfaces.seats.langchain import sandbox_tools

    tools = {tool.name: tool for tool in sandbox_tools(sandbox)}
    assert json.loads(tools["write_file"].invoke({"path": "a", "content": "x"}))["size"] == 1
    assert json.loads(await tools["run_code"].ainvoke({"code": "open('a').read()"}))["value"] == "'x'"
    call = {"name": "run_code", "args": {"code": "6 * 7"}, "id": "1", "type": "tool_call"}
    assert json.loads(tools["run_code"].invoke(call).content)["value"] == "42"
    assert json.loads(tools["read_file"].invoke({"path": "/etc/passwd"}))["status"] == "error"
