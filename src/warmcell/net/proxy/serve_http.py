"""HTTP as the guest speaks it: to the proxy itself, in a tunnel to port 80, or in TLS that is terminated here."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.byte_streams import ByteStream
from warmcell.net.proxy.forward_request import Forwarding, Outward, refusal
from warmcell.net.proxy.request_head import MAX_HEAD_BYTES, HeadError, RequestHead, parse_head
from warmcell.net.rules.hosts import Host
from warmcell.net.rules.urls import DEFAULT_PORTS, Target, UrlError, parse_url, split_authority

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Pinned:
    """The one place to which the requests of a tunnel may go."""

    scheme: str
    host: Host
    port: int


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A guest asked for a tunnel; `early` is what it sent without waiting for the answer."""

    host: Host
    port: int
    early: bytes


async def serve_http(
    stream: ByteStream, outward: Outward, via: str, pinned: Pinned | None = None
) -> ConnectRequest | None:
    """Answers requests until the guest has no more. A CONNECT ends it and is given back."""
    received = b""
    is_first = True
    while True:
        limit = outward.limits.head_seconds if is_first or received else outward.limits.idle_seconds
        raw, rest = await _read_head(stream, received, limit)
        if raw is None:
            return None
        try:
            head = parse_head(raw)
            if head.method == "CONNECT" and pinned is None:
                return _connect_request(head, rest)
            target = target_of(head, pinned)
        except (HeadError, UrlError) as error:
            outward.gate.refuse_unread(str(error), via)
            await _refuse(stream, f"the request is refused: {error}")
            return None
        # What h11 reads is what was judged: it knows HEAD and CONNECT in capitals only.
        judged = head.method.encode() + raw[len(head.method) :]
        left = await Forwarding(stream, outward, via).run(judged, rest, head, target)
        if left is None:
            return None
        received, is_first = left, False


async def _read_head(stream: ByteStream, received: bytes, limit: float) -> tuple[bytes | None, bytes]:
    """The head with its empty line, and what came after it; None when the guest closes, stalls or floods."""
    found = bytearray(received)
    position = found.find(_END)
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(limit):
            while position < 0 and len(found) <= MAX_HEAD_BYTES:
                data = await stream.read()
                if not data:
                    return None, b""
                # Only where the end can be new: a guest may send its head byte by byte.
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
        raise HeadError("the Host header names another host than CONNECT")
    return ConnectRequest(host, port, early)


def target_of(head: RequestHead, pinned: Pinned | None) -> Target:
    """Where the request goes; inside a tunnel, nowhere but where the tunnel goes."""
    target = _pinned_target(head, pinned) if pinned else parse_url(head.target)
    if pinned is None and target.scheme != "http":
        raise HeadError("https goes through CONNECT")
    named = head.get("host")
    if named is not None and split_authority(named, DEFAULT_PORTS[target.scheme]) != (target.host, target.port):
        raise HeadError("the Host header names another host than the URL")
    return target


def _pinned_target(head: RequestHead, pinned: Pinned) -> Target:
    where = Target(pinned.scheme, pinned.host, pinned.port)
    if not head.target.startswith("/"):
        raise HeadError("inside a tunnel a request names a path, not a URL")
    return parse_url(f"{pinned.scheme}://{where.authority}{head.target}")
