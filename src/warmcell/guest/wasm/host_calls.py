"""The module `sandbox` that toolbox guests import: `fetch` and `exec`, three functions each.

A request is JSON at (pointer, length). The result is 0 (there is a response), -1 (malformed) or -2 (not allowed; the
response says how to allow it). The guest then asks for the response's length and reads it. No argument of a guest can
raise an exception.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

import wasmtime
from wasm.engine import HOST, HostFunction, HostFunctions
from wasm.memory import GuestMemory
from wasm.protocol import read_json, write_json

OK, MALFORMED, NOT_ALLOWED = 0, -1, -2
MAX_REQUEST_BYTES = 16 << 20
_HOW_TO_ENABLE = {
    "fetch": "networking is disabled for this sandbox; pass fetch_policy=FetchPolicy(allowed_domains=[...])",
    "exec": "this run may not start commands",
}
#: Takes the request and the calling guest. None means not allowed.
Handler = Callable[[dict[str, Any], wasmtime.Caller], bytes | None]
#: The supervisor accepts at most 64 KiB of JSON; the body is sent as a blob.
_MOST_HEAD_BYTES = 48 << 10
_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool, "body": str}


class MalformedRequest(Exception):
    """The request is JSON, but its fields are wrong."""


class HostCalls:
    """One per worker. A response belongs to the innermost run, the only one that can make calls."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self._responses: list[dict[str, bytes]] = [{}]

    def enter(self) -> None:
        self._responses.append({})

    def leave(self) -> None:
        self._responses.pop()

    def functions(self) -> HostFunctions:
        found: HostFunctions = {}
        for what in _HOW_TO_ENABLE:
            found[HOST, f"__sandbox_{what}"] = HostFunction(2, 1, self._request_call(what))
            found[HOST, f"__sandbox_{what}_response_len"] = HostFunction(0, 1, self._length_call(what))
            found[HOST, f"__sandbox_{what}_response_read"] = HostFunction(2, 1, self._read_call(what))
        return found

    def _request_call(self, what: str) -> Callable[[wasmtime.Caller, int, int], int]:
        def call(caller: wasmtime.Caller, pointer: int, length: int) -> int:
            self._responses[-1].pop(what, None)
            request = _parse(_read_request(caller, pointer, length))
            if request is None:
                return MALFORMED
            try:
                response = self.handlers[what](request, caller)
            except MalformedRequest:
                return MALFORMED
            self._responses[-1][what] = _refusal(what) if response is None else response
            return NOT_ALLOWED if response is None else OK

        return call

    def _length_call(self, what: str) -> Callable[[wasmtime.Caller], int]:
        def call(_caller: wasmtime.Caller) -> int:
            response = self._responses[-1].get(what)
            return MALFORMED if response is None else len(response)

        return call

    def _read_call(self, what: str) -> Callable[[wasmtime.Caller, int, int], int]:
        def call(caller: wasmtime.Caller, pointer: int, length: int) -> int:
            response = self._responses[-1].get(what)
            if response is None or length < 0:
                return MALFORMED
            piece = response[:length]
            return len(piece) if GuestMemory(caller).write(pointer, piece) else MALFORMED

        return call


def _read_request(caller: wasmtime.Caller, pointer: int, length: int) -> bytes | None:
    if pointer < 0 or not 0 < length <= MAX_REQUEST_BYTES:
        return None
    return GuestMemory(caller).read(pointer, length)


def _parse(raw: bytes | None) -> dict[str, Any] | None:
    try:
        request = read_json(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _refusal(what: str) -> bytes:
    return write_json({"error": {"code": f"{what}_disabled", "message": _HOW_TO_ENABLE[what]}})


def parse_fetch(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The validated fields of a fetch, and its body. Raises `MalformedRequest`.

    Parsed here, so that the supervisor never parses a guest's JSON.
    """
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
