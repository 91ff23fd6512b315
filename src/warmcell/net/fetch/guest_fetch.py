"""The host side of a guest's `fetch()` and `curl`: JSON in, JSON out. Guest input never raises out of it."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from warmcell.core.errors import FetchFailed, NetworkingDisabled, SandboxError
from warmcell.net.connect.unreachable import as_guest_error
from warmcell.net.fetch.messages import FetchRequest, FetchResponse
from warmcell.net.fetch.safe_client import SafeClient

MAX_REQUEST_BYTES = 16 * 1024 * 1024
_KEYS = frozenset({"url", "method", "headers", "body", "timeout", "follow_redirects"})


class HostCallError(ValueError):
    """The bytes are not a valid request. The caller returns -1 to the guest."""


async def handle_fetch_json(client: SafeClient | None, request: bytes) -> bytes:
    """Handle one fetch of a guest. Without a client, the response says how to enable networking."""
    if client is None:
        return networking_disabled()
    parsed = parse_request(request)
    try:
        return _response(await client.fetch(parsed))
    except FetchFailed as error:
        guest_error = as_guest_error(error)
        return error_json(guest_error.reason, str(guest_error))
    except SandboxError as error:
        return error_json("invalid", str(error))


def parse_request(request: bytes) -> FetchRequest:
    """Parse a JSON request. Raises `HostCallError`."""
    if len(request) > MAX_REQUEST_BYTES:
        raise HostCallError(f"the request is larger than {MAX_REQUEST_BYTES} bytes")
    try:
        data = json.loads(request)
    except (ValueError, RecursionError) as error:
        raise HostCallError(f"the request is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("url"), str):
        raise HostCallError("the request is not an object with a url")
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise HostCallError(f"unknown key {unknown[0]!r}")
    return _build_request(data)


def _build_request(data: dict[str, Any]) -> FetchRequest:
    data = {key: value for key, value in data.items() if value is not None}
    method, headers = data.get("method", "GET"), data.get("headers", {})
    timeout, follow = data.get("timeout"), data.get("follow_redirects", True)
    if not isinstance(method, str) or not isinstance(headers, dict) or not isinstance(follow, bool):
        raise HostCallError("method, headers or follow_redirects has the wrong type")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise HostCallError("timeout must be a number of seconds")
    body = _decode_body(data.get("body"))
    return FetchRequest(data["url"], method, headers, body, timeout=timeout, follow_redirects=follow)


def _decode_body(body: object) -> bytes | None:
    if body is None:
        return None
    if not isinstance(body, str):
        raise HostCallError("body must be base64 text")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise HostCallError("body is not base64") from None


def _response(response: FetchResponse) -> bytes:
    return _to_json(
        {
            "status": response.status,
            "headers": dict(response.headers),
            "body": base64.b64encode(response.body).decode("ascii"),
            "url": response.url,
        }
    )


def error_json(reason: str, message: str) -> bytes:
    """An error response for the guest; `reason` becomes a code such as `fetch.timeout`."""
    return _to_json({"error": {"code": f"fetch.{reason}", "message": message}})


def networking_disabled() -> bytes:
    """The response for a guest without network; the call itself returns -2."""
    return error_json("refused", str(NetworkingDisabled()))


def _to_json(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode()
