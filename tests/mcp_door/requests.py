"""Requests to an MCP server under test."""

from __future__ import annotations

import json
from typing import Any

import httpx
from mcp import Client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    answer: dict[str, Any] = result.structured_content
    assert json.loads(result.content[0].text) == answer
    assert result.is_error == (answer["status"] != "success")
    return answer


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
JUNK = {
    "empty": b"",
    "cut": b'{"jsonrpc": "2.0", "id": 1',
    "word": b"hello",
    "list": b"[]",
    "number": b"7",
    "not utf-8": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "deep object": b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":'
    + b'{"a":' * 50_000
    + b"1"
    + b"}" * 50_001,
    "no method": b'{"jsonrpc": "2.0", "id": 2}',
    "unknown method": b'{"jsonrpc": "2.0", "id": 2, "method": "rm -rf"}',
    "wrong id": b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"}',
    "wrong params": b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": [1, 2]}',
    "no name": b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {}}',
    "name is a number": b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 3}}',
    "arguments are text": b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":"x"}}',
    "code is an object": b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":'
    b'{"name":"run_code","arguments":{"code":{}}}}',
    "huge number": b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":'
    b'{"code":"1","timeout_secs":1' + b"0" * 5000 + b"}}}",
    "surrogate": b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":'
    b'{"code":"\\ud800"}}}',
    "big uri": b'{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"' + b"x" * 100_000 + b'"}}',
    "cancel of nothing": b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}',
}


def session_of(client: httpx.Client, url: str) -> dict[str, str]:
    answer = client.post(url, json=HELLO, headers=HEADERS)
    headers = HEADERS | {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    assert client.post(url, json=READY, headers=headers).status_code == 202
    return headers
