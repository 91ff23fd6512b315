"""Bounds on the messages of MCP clients over HTTP, before the SDK parses them."""

from __future__ import annotations

import json
from typing import Any

from warmcell.interfaces.serve.responses import HttpError
from warmcell.lifetime.threads import in_thread

#: Of requests other than tool calls. The SDK keeps what a client says about itself as long as its session, as objects
#: that take 25 times as much memory as their text.
MAX_PLAIN_BYTES = 64 * 1024
#: In a tool call that is larger: long texts, not many values, which the SDK would take seconds to check.
MAX_VALUES = 10_000


async def check_size(body: bytes) -> bytes:
    """The body for the SDK. Raises `HttpError` 413 if it is large, and not a tool call or with too many values."""
    if len(body) <= MAX_PLAIN_BYTES:
        return body
    return await in_thread(lambda: _check_large(body))


def _check_large(body: bytes) -> bytes:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not valid JSON") from None
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        raise HttpError(413, f"a request other than tools/call has at most {MAX_PLAIN_BYTES} bytes")
    waiting: list[Any] = [message]
    count = 0
    while waiting:
        found = waiting.pop()
        items = list(found.values()) if isinstance(found, dict) else found
        count += len(items)
        if count > MAX_VALUES:
            raise HttpError(413, f"a tool call has at most {MAX_VALUES} values")
        waiting += [item for item in items if isinstance(item, dict | list)]
    return json.dumps(message).encode()  # of two members of one name, the SDK sees the one that was checked
