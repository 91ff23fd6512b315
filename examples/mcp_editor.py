"""What an editor does with `warmcell mcp`: starts it, lists its tools, and calls them for its model.

    pip install 'warmcell[mcp]'
    python examples/mcp_editor.py

An editor needs no code, only its settings. For Cursor (.cursor/mcp.json), Claude Desktop and others:

    {"mcpServers": {"warmcell": {"command": "warmcell", "args": ["mcp", "--work-dir", "."]}}}

and for VS Code (.vscode/mcp.json):

    {"servers": {"warmcell": {"type": "stdio", "command": "warmcell",
                              "args": ["mcp", "--work-dir", "${workspaceFolder}"]}}}

`ask_model` stands for the model: it chooses the next call. Here it tests a function, sees the failure, and mends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from mcp import Client, StdioServerParameters

WRONG = "def median(values):\n    return sorted(values)[len(values) // 2]\n"
RIGHT = """def median(values):
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
"""
TEST = "python3 -c 'from median import median; assert median([1, 2, 3, 4]) == 2.5; print(\"passed\")'"


def ask_model() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "write_file", {"path": "median.py", "content": WRONG}
    yield "run_command", {"command": TEST}
    yield "write_file", {"path": "median.py", "content": RIGHT}
    yield "run_command", {"command": TEST}
    yield "list_files", {}


async def main() -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "warmcell", "mcp"])
    async with Client(server) as client:
        print("tools:", ", ".join(sorted(tool.name for tool in (await client.list_tools()).tools)))
        for name, arguments in ask_model():
            answer = await client.call_tool(name, arguments)
            shown = answer.structured_content or {}
            print(f"{name}: exit_code {shown['exit_code']}" if "exit_code" in shown else name)


if __name__ == "__main__":
    asyncio.run(main())
