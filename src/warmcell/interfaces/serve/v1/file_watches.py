"""`/v1/sandboxes/{id}/watch`: changes of files, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.event_streams import KEEPALIVE, event_stream, format_event, with_keepalives
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import Service, get_entry, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.queries import PATH, flag_in_query, path_in_query, query
from warmcell.interfaces.serve.v1.sandbox_state import state_of
from warmcell.sandbox.watches import AsyncWatch
from warmcell.workspace import inotify
from warmcell.workspace.file_watch import FileEvent

#: Per sandbox: a watch uses one of the user's inotify instances, of which there are few.
MAX_WATCHES = 4
#: Of those instances one tenant gets an eighth, and all tenants half: the rest is left to guests and other programs.
_TENANT_SHARE, _SERVER_SHARE = 8, 2


async def watch(request: Request, tenant: Tenant) -> Response:
    """Events of the files in a directory, or with `recursive` of all below it: first `ready`, then `file`."""
    entry, recursive = get_entry(request, tenant), flag_in_query(request, "recursive")
    state = state_of(entry)
    _check_shares(get_service(request), tenant, state.watches)
    state.watches += 1
    try:
        await entry.sandbox.start()  # the directory exists only from here on
        made = entry.sandbox.watch(path_in_query(request), recursive=recursive)
    except BaseException:
        state.watches -= 1
        raise

    async def end() -> None:
        state.watches -= 1
        await made.aclose()

    return event_stream(_events(get_service(request), made), end)


def _check_shares(service: Service, tenant: Tenant, of_sandbox: int) -> None:
    """Raises `HttpError` 429 if the sandbox, the tenant or the server has all watches that it may have."""
    watches = [(entry.tenant_id, state_of(entry).watches) for entry in service.sandboxes.all()]
    of_tenant = sum(count for owner, count in watches if owner == tenant.id)
    instances = inotify.most_instances()
    for holder, used, most in (
        ("the sandbox", of_sandbox, MAX_WATCHES),
        ("this token", of_tenant, instances // _TENANT_SHARE),
        ("the server", sum(count for _, count in watches), instances // (_SERVER_SHARE * service.settings.workers)),
    ):
        if used >= max(1, most):
            raise HttpError(429, f"{holder} already has {most} watches", headers={"Retry-After": "5"})


async def _events(service: Service, made: AsyncWatch) -> AsyncIterator[str]:
    yield format_event("ready", {})
    async with aclosing(with_keepalives(_items(made), service.draining)) as items:  # type: ignore[type-var]
        async for item in items:
            yield KEEPALIVE if item is None else format_event("file", {"path": item.path, "kind": item.kind})


async def _items(made: AsyncWatch) -> AsyncIterator[FileEvent]:
    async for item in made:
        yield item


def routes() -> list[Any]:
    parameters = [PATH, query("recursive", {"type": "boolean"})]
    return [route("GET", "/v1/sandboxes/{id}/watch", watch, "sandbox", answers=("events",), parameters=parameters)]
