"""`/v1/sandboxes/{id}/watch`: what happens to files, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import Refused
from warmcell.interfaces.serve.service import Service, held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import event, event_stream, with_pauses
from warmcell.interfaces.serve.v1.queries import PATH, flag_in_query, path_in_query, query
from warmcell.sandbox.watches import AsyncWatch
from warmcell.workspace.watching import FileEvent

#: Each takes one of the few inotify instances that a user has.
MOST_WATCHES = 4


async def watch(request: Request, tenant: Tenant) -> Response:
    """Events of the files in a directory, or with `recursive` of all below it: first `ready`, then `file`."""
    held, recursive = held_of(request, tenant), flag_in_query(request, "recursive")
    if held.extras.get("watches", 0) >= MOST_WATCHES:
        raise Refused(429, f"the sandbox has {MOST_WATCHES} watches already", headers={"Retry-After": "5"})
    held.extras["watches"] = held.extras.get("watches", 0) + 1
    try:
        await held.sandbox.start()  # what is not there yet cannot be watched
        made = held.sandbox.watch(path_in_query(request), recursive=recursive)
    except BaseException:
        held.extras["watches"] -= 1
        raise

    async def end() -> None:
        held.extras["watches"] -= 1
        await made.aclose()

    return event_stream(_events(service_of(request), made), end)


async def _events(service: Service, made: AsyncWatch) -> AsyncIterator[str]:
    yield event("ready", {})
    async with aclosing(with_pauses(_items(made), service.draining)) as items:  # type: ignore[type-var]
        async for item in items:
            told = None if item is None else {"path": item.path, "kind": item.kind}
            yield ": nothing happened\n\n" if told is None else event("file", told)


async def _items(made: AsyncWatch) -> AsyncIterator[FileEvent]:
    async for item in made:
        yield item


def routes() -> list[Any]:
    parameters = [PATH, query("recursive", {"type": "boolean"})]
    return [door("GET", "/v1/sandboxes/{id}/watch", watch, "sandbox", answers=("events",), parameters=parameters)]
