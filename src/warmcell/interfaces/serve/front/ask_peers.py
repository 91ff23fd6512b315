"""Requests that all workers or nodes answer: figures and lists that are merged, and objects that one of them has.

A node that is lost meanwhile is left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import BackendUnavailable, NodeLost
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.control import PAGE, page_of
from warmcell.interfaces.serve.event_streams import wants_events
from warmcell.interfaces.serve.front.admission import Admission
from warmcell.interfaces.serve.front.placement import OWN_SANDBOXES, SNAPSHOTS
from warmcell.interfaces.serve.front.relay import PART_OF_REQUEST, Peer, relay
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.requests import Receive, replay
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.sandbox_registry import MAYBE_ELSEWHERE, PROBE_ONLY
from warmcell.interfaces.serve.v1.activity import HISTORY, merge_activity, merge_history, open_stream
from warmcell.observe.metrics import METRICS_HEADERS, merge_metrics

P = TypeVar("P", bound=Peer)

_NEXT = "x-next-token"
_BODY_HEADERS = (b"content-length", b"content-type", b"transfer-encoding")


class HistoryStreams:
    """The history streams that the front makes, counted by tenant."""

    def __init__(self, admission: Admission, draining: asyncio.Event) -> None:
        self._admission, self.draining, self.quota = admission, draining, TenantQuota()

    def owner_of(self, request: Request) -> str:
        """The tenant that the stream counts for. Without a token file there is only one."""
        tenant = self._admission.find_tenant(find_token(request) or "")
        return "" if tenant is None else tenant.id


async def merge_figures(peers: Sequence[Peer], request: Request, streams: HistoryStreams) -> Response:
    """Merge metrics, activity or history of all peers. A stream of history is made here."""
    headers = [pair for pair in request.scope["headers"] if pair[0] != b"accept"]
    scope = {**request.scope, "headers": headers}

    async def read_history(since: float) -> dict[str, Any]:
        query = {"query_string": f"since={since}".encode()} if since else {}
        found = await _merge(peers, request, {**scope, **query})
        if found.status_code != 200:
            raise HttpError(found.status_code, "a process of this server did not return its history")
        history: dict[str, Any] = json.loads(bytes(found.body))
        return history

    first = await _merge(peers, request, scope)
    if scope["path"] != HISTORY or not wants_events(request) or first.status_code != 200:
        return first
    return open_stream(streams.quota, streams.owner_of(request), read_history, streams.draining)


async def _merge(peers: Sequence[Peer], request: Request, scope: Any) -> Response:
    """Merge the responses of all peers, or return the first that is not 200."""
    found: list[tuple[Peer, Response]] = []
    async for peer, response in _ask_each(peers, {**scope, "method": "GET"}, request.receive):
        if response.status_code != 200:
            return response
        found.append((peer, response))
    bodies = [bytes(response.body) for _, response in found]
    if scope["path"] == HISTORY:
        return json_response(merge_history(bodies))
    if found[0][1].headers["content-type"] == "application/json":
        return json_response(merge_activity(_add_labels(peer, bytes(response.body)) for peer, response in found))
    return Response(merge_metrics(body.decode() for body in bodies), headers=METRICS_HEADERS)


def _add_labels(peer: Peer, body: bytes) -> bytes:
    """Add the peer's labels to each row of its activity."""
    if not peer.labels:
        return body
    activity = json.loads(body)
    return json.dumps({name: [{**row, **peer.labels} for row in rows] for name, rows in activity.items()}).encode()


async def merge_lists(peers: Sequence[Peer], request: Request) -> Response:
    """Merge the sandboxes or snapshots of all peers; E2B's in pages, as E2B's clients request them."""
    rows: list[dict[str, Any]] = []
    for number, peer in enumerate(peers):
        try:
            found = await _read_pages(peer, request, is_part=number > 0)
        except NodeLost:
            continue
        if isinstance(found, Response):
            return found
        rows += found
    if request.scope["path"] == OWN_SANDBOXES:  # a list without pages
        return json_response(sorted(rows, key=lambda row: float(row.get("created", 0))))
    if request.scope["path"] != SNAPSHOTS:
        rows.sort(key=lambda row: str(row["startedAt"]), reverse=request.query_params.get("order") != "asc")
    chosen, headers = page_of(request, rows)
    return json_response(chosen, headers=headers)


async def _read_pages(peer: Peer, request: Request, *, is_part: bool) -> list[dict[str, Any]] | Response:
    pairs = request.scope["query_string"].split(b"&")
    kept = [pair for pair in pairs if pair and pair.partition(b"=")[0] not in (b"limit", b"nextToken")]
    rows: list[dict[str, Any]] = []
    while True:
        page = [b"limit=%d" % PAGE, b"nextToken=%d" % len(rows)]
        scope = {**request.scope, "method": "GET", "query_string": b"&".join([*kept, *page])}
        found = await ask(peer, scope, request.receive, is_part=is_part or bool(rows))
        if found.status_code != 200:
            return found
        rows += json.loads(bytes(found.body))
        if _NEXT not in found.headers:
            return rows


async def ask_until_found(peers: Sequence[Peer], request: Request) -> Response:
    """Ask one peer after the other until one has the object that the operator's request names."""
    async for _, found in _ask_each(peers, request.scope, request.receive, is_part=False):
        if found.status_code != 404:
            break
    return found


async def choose_for_link(peers: Sequence[P], request: Request, send: Any) -> P | None:
    """Find the peer of a signed link, which names neither sandbox nor tenant: probe each without sending the body."""
    scope = {**request.scope, "headers": [*request.scope["headers"], (PROBE_ONLY.encode(), b"1")]}
    silence = asyncio.get_running_loop().create_future  # of a client that stays connected and sends nothing
    async for peer, found in _ask_each(peers, scope, silence, is_part=True):
        if MAYBE_ELSEWHERE not in found.headers:
            return peer
    await found(request.scope, request.receive, send)
    return None


async def _ask_each(
    peers: Sequence[P], scope: Any, receive: Receive, *, is_part: bool | None = None
) -> AsyncIterator[tuple[P, Response]]:
    """Yield the peers' responses, one after the other. Raises if no peer answers."""
    has_answer = False
    for peer in peers:
        try:
            response = await ask(peer, scope, receive, is_part=has_answer if is_part is None else is_part)
        except NodeLost:
            continue
        has_answer = True
        yield peer, response
    if not has_answer:
        raise BackendUnavailable("no node of the cluster answers", hint="try again later")


async def ask(worker: Peer, scope: Any, receive: Receive, *, is_part: bool = False) -> Response:
    """Send a request without a body. `is_part`: another worker reports the client's request."""
    parts: list[dict[str, Any]] = []

    async def append(message: dict[str, Any]) -> None:
        parts.append(message)

    headers = [pair for pair in scope["headers"] if pair[0] not in _BODY_HEADERS]
    scope = {**scope, "headers": headers, PART_OF_REQUEST: is_part}
    await relay(worker, scope, replay(b"", receive), append)
    head = {name.decode("latin-1"): text.decode("latin-1") for name, text in parts[0]["headers"]}
    return Response(b"".join(part.get("body", b"") for part in parts), parts[0]["status"], head)
