"""`fetch` for toolbox guests: taken apart here, so that the supervisor never parses what a guest wrote."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from wasm.frames import write_json
from wasm.host_calls import Malformed

#: The supervisor takes no longer text; a body goes beside it, as bytes.
_MOST_HEAD_BYTES = 48 << 10
_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool, "body": str}


def parse_fetch(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The fields of the request, each of its type, and its body. `Malformed` where anything is off."""
    fields = {name: value for name, value in request.items() if value is not None}
    for name, value in fields.items():
        if name not in _FIELDS or not isinstance(value, _FIELDS[name]):
            raise Malformed(f"{name} is unknown or of the wrong type")
        if isinstance(value, bool) and name != "follow_redirects":
            raise Malformed(f"{name} is of the wrong type")
    if "url" not in fields:
        raise Malformed("there is no url")
    if not all(isinstance(value, str) for value in fields.get("headers", {}).values()):
        raise Malformed("headers must be texts")
    body = fields.pop("body", None)
    if len(write_json(fields)) > _MOST_HEAD_BYTES:
        raise Malformed("url and headers are too long")
    return ({**fields, "has_body": True}, _decoded(body)) if body is not None else (fields, b"")


def _decoded(body: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("body must be base64") from None
