"""The seat for LangChain and LangGraph agents: a sandbox's tools as `StructuredTool`s."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from warmcell.interfaces.seats.missing import framework_missing
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

try:
    from langchain_core.tools import BaseTool, StructuredTool
except ImportError as error:
    raise framework_missing("langchain", error) from error


def sandbox_tools(sandbox: Sandbox, **options: Any) -> list[BaseTool]:
    """For `create_agent(model, tools=sandbox_tools(sandbox))`; `options` are those of `sandbox.tools()`."""
    inner = sandbox._async.tools(**options)

    def call(name: str, **args: Any) -> str:
        return json.dumps(portal.call(inner.call, name, args))

    async def acall(name: str, **args: Any) -> str:
        return json.dumps(await portal.reach(inner.call, name, args))

    return [
        StructuredTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.parameters,
            func=partial(call, tool.name),
            coroutine=partial(acall, tool.name),
        )
        for tool in inner
    ]
