"""Serves the guest's HTTP: to the proxy itself, in a tunnel to port 80, or in TLS terminated here."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.byte_streams import ByteStream
from warmcell.net.proxy.forward_request import EgressContext, RequestForwarder, refusal
from warmcell.net.proxy.request_head import MAX_HEAD_BYTES, HeadError, RequestHead, parse_head
from warmcell.net.rules.hosts import Host
from warmcell.net.rules.urls import DEFAULT_PORTS, Target, UrlError, parse_url, split_authority

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class PinnedTarget:
    """The only destination for requests inside a tunnel."""

    scheme: str
    host: Host
    port: int


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A guest's CONNECT. `early` is what it sent without waiting for the response."""

    host: Host
    port: int
    early: bytes


async def serve_http(
    stream: ByteStream, egress: EgressContext, via: str, pinned: PinnedTarget | None = None
) -> ConnectRequest | None:
    """Serve requests until the guest closes. A CONNECT ends the loop and is returned."""
    received = b""
    is_first = True
    while True:
        limit = egress.limits.head_seconds if is_first or received else egress.limits.idle_seconds
        raw, rest = await _read_head(stream, received, limit)
        if raw is None:
            return None
        try:
            head = parse_head(raw)
            if head.method == "CONNECT" and pinned is None:
                return _connect_request(head, rest)
            target = parse_target(head, pinned)
        except (HeadError, UrlError) as error:
            egress.gate.refuse_malformed(str(error), via)
            await _refuse(stream, f"the request is refused: {error}")
            return None
        # The upper-case method: h11 recognises HEAD and CONNECT only in upper case.
        judged = head.method.encode() + raw[len(head.method) :]
        left = await RequestForwarder(stream, egress, via).run(judged, rest, head, target)
        if left is None:
            return None
        received, is_first = left, False


async def _read_head(stream: ByteStream, received: bytes, limit: float) -> tuple[bytes | None, bytes]:
    """The head with its empty line, and the bytes after it; None if the guest closed, timed out or sent too much."""
    found = bytearray(received)
    position = found.find(_END)
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(limit):
            while position < 0 and len(found) <= MAX_HEAD_BYTES:
                data = await stream.read()
                if not data:
                    return None, b""
                # Search only the new bytes: a guest may send its head byte by byte.
                looked_at = max(0, len(found) - len(_END) + 1)
                found += data
                position = found.find(_END, looked_at)
    if not 0 <= position <= MAX_HEAD_BYTES:
        if len(found) > MAX_HEAD_BYTES:
            await _refuse(stream, f"the request head is larger than {MAX_HEAD_BYTES} bytes")
        return None, b""
    end = position + len(_END)
    return bytes(found[:end]), bytes(found[end:])


async def _refuse(stream: ByteStream, message: str) -> None:
    with contextlib.suppress(OSError):
        await stream.write(refusal(FetchFailed(message, reason="invalid")))


def _connect_request(head: RequestHead, early: bytes) -> ConnectRequest:
    host, port = split_authority(head.target, None)
    if head.get("content-length") not in (None, "0") or head.get("transfer-encoding"):
        raise HeadError("a CONNECT with a body")
    named = head.get("host")
    if named and split_authority(named, port)[0] != host:
        raise HeadError("the Host header does not match the CONNECT target")
    return ConnectRequest(host, port, early)


def parse_target(head: RequestHead, pinned: PinnedTarget | None) -> Target:
    """The request's destination; inside a tunnel it is the tunnel's."""
    target = _pinned_target(head, pinned) if pinned else parse_url(head.target)
    if pinned is None and target.scheme != "http":
        raise HeadError("https needs CONNECT")
    named = head.get("host")
    if named is not None and split_authority(named, DEFAULT_PORTS[target.scheme]) != (target.host, target.port):
        raise HeadError("the Host header does not match the URL")
    return target


def _pinned_target(head: RequestHead, pinned: PinnedTarget) -> Target:
    where = Target(pinned.scheme, pinned.host, pinned.port)
    if not head.target.startswith("/"):
        raise HeadError("a request inside a tunnel must use a path, not a URL")
    return parse_url(f"{pinned.scheme}://{where.authority}{head.target}")
