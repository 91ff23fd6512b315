"""OpenAI Agents SDK: a sandbox's tools as `FunctionTool`s."""

from __future__ import annotations

import json
from typing import Any

from warmcell.interfaces.seats import framework
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

with framework("openai-agents"):
    from agents import FunctionTool


def sandbox_tools(sandbox: Sandbox, **options: Any) -> list[FunctionTool]:
    """For `Agent(tools=sandbox_tools(sandbox))`; `options` are those of `sandbox.tools()`."""
    inner = sandbox._async.tools(**options)

    def make_invoker(name: str) -> Any:
        async def invoke(_: Any, arguments: str) -> str:
            return json.dumps(await portal.call_async(inner.call, name, arguments))

        return invoke

    return [
        FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.parameters,
            on_invoke_tool=make_invoker(tool.name),
            strict_json_schema=False,  # strict schemas have no optional arguments
        )
        for tool in inner
    ]
