"""The host call `fetch` of toolbox guests. Parsed here, so that the supervisor never parses a guest's JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from wasm.protocol import write_json

from wasm.host_calls import MalformedRequest

#: The supervisor accepts at most 64 KiB of JSON; the body is sent as a blob.
_MOST_HEAD_BYTES = 48 << 10
_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool, "body": str}


def parse_fetch(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The validated fields of the request, and its body. Raises `MalformedRequest`."""
    fields = {name: value for name, value in request.items() if value is not None}
    for name, value in fields.items():
        if name not in _FIELDS or not isinstance(value, _FIELDS[name]):
            raise MalformedRequest(f"{name} is unknown or of the wrong type")
        if isinstance(value, bool) and name != "follow_redirects":
            raise MalformedRequest(f"{name} is of the wrong type")
    if "url" not in fields:
        raise MalformedRequest("url is missing")
    if not all(isinstance(value, str) for value in fields.get("headers", {}).values()):
        raise MalformedRequest("header values must be strings")
    body = fields.pop("body", None)
    if len(write_json(fields)) > _MOST_HEAD_BYTES:
        raise MalformedRequest("url and headers are too long")
    return ({**fields, "has_body": True}, _decode(body)) if body is not None else (fields, b"")


def _decode(body: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedRequest("body must be base64") from None
