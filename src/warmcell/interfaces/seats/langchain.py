"""LangChain and LangGraph: a sandbox's tools as `StructuredTool`s."""

from __future__ import annotations

import json
from typing import Any

from warmcell.interfaces.seats import framework
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

with framework("langchain"):
    from langchain_core.tools import BaseTool, StructuredTool


def sandbox_tools(sandbox: Sandbox, **options: Any) -> list[BaseTool]:
    """For `create_agent(model, tools=sandbox_tools(sandbox))`; `options` are those of `sandbox.tools()`."""
    inner = sandbox._async.tools(**options)

    def make_tool(name: str, description: str, parameters: dict[str, Any]) -> BaseTool:
        # Functions, not partials: agents read their annotations.
        def call(**arguments: Any) -> str:
            return json.dumps(portal.call(inner.call, name, arguments))

        async def acall(**arguments: Any) -> str:
            return json.dumps(await portal.call_async(inner.call, name, arguments))

        return StructuredTool(name=name, description=description, args_schema=parameters, func=call, coroutine=acall)

    return [make_tool(tool.name, tool.description, tool.parameters) for tool in inner]
