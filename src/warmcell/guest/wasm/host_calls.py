"""The module `sandbox` that toolbox guests import: `fetch` and `exec`, each as three calls.

A request is JSON at (pointer, length). The answer is 0 (a response is there), -1 (malformed) or -2 (not allowed here;
the response says how to allow it). The response is then read by length. Nothing that a guest passes can raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wasmtime
from wasm.engine import HOST, HostFunction, HostFunctions
from wasm.frames import read_json, write_json
from wasm.memory import GuestMemory

OK, MALFORMED, NOT_ALLOWED = 0, -1, -2
MAX_REQUEST_BYTES = 16 << 20
_HOW_TO_ENABLE = {
    "fetch": "networking is disabled for this sandbox; pass fetch_policy=FetchPolicy(allowed_domains=[...])",
    "exec": "this run may not start other commands",
}

#: Answers one request: what it says, and the calling guest. None means "not allowed here".
Answer = Callable[[dict[str, Any], wasmtime.Caller], bytes | None]


class Malformed(Exception):
    """The request is JSON, but not the one that was agreed on."""


class HostCalls:
    """One per worker. Responses belong to the innermost guest that is running, which is the only one that can ask."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
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
                response = self.answers[what](request, caller)
            except Malformed:
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
