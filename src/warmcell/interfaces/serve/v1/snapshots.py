"""`/v1/sandboxes/{id}/fork`, `/snapshots` and `/restore`: copies of the work directory."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.requests import read_model
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import get_entry, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.sandbox_models import ForkBody, RestoreBody
from warmcell.interfaces.serve.v1.sandbox_state import state_of
from warmcell.interfaces.serve.v1.sandboxes import sandbox_to_dict

#: Per sandbox: each may use as much disk as the sandbox itself.
MAX_SNAPSHOTS = 8


async def fork(request: Request, tenant: Tenant) -> Response:
    """Makes a new sandbox with the same policy and a copy of the work directory, without its processes."""
    entry, service = get_entry(request, tenant), get_service(request)
    body = await read_model(request, ForkBody)
    service.check_policy(entry)
    with service.gpus.count_use(tenant, entry.has_gpu) as keep:
        made = await service.sandboxes.add_async(
            lambda: entry.sandbox.fork(body.snapshot), tenant, body.lifetime, entry.metadata | body.metadata
        )
        keep(made)
    return json_response(sandbox_to_dict(made), 201)


async def snapshot(request: Request, tenant: Tenant) -> Response:
    """Copies the work directory; the copy lasts as long as the sandbox."""
    entry = get_entry(request, tenant)
    state = state_of(entry)
    if state.snapshots >= MAX_SNAPSHOTS:
        raise HttpError(429, f"the sandbox already has {MAX_SNAPSHOTS} snapshots", headers={"Retry-After": "60"})
    state.snapshots += 1
    try:
        taken = await entry.sandbox.snapshot()
    except BaseException:
        state.snapshots -= 1
        raise
    return json_response({"id": str(taken), "skipped": list(taken.skipped)}, 201)


async def restore(request: Request, tenant: Tenant) -> Response:
    """Restores the work directory from a snapshot."""
    entry, body = get_entry(request, tenant), await read_model(request, RestoreBody)
    await entry.sandbox.restore(body.snapshot)
    return Response(status_code=204)


def routes() -> list[Any]:
    at = "/v1/sandboxes/{id}"
    return [
        route("POST", f"{at}/fork", fork, "sandbox", body=ForkBody, answers=("Sandbox",), status=201),
        route("POST", f"{at}/snapshots", snapshot, "sandbox", answers=("Snapshot",), status=201),
        route("POST", f"{at}/restore", restore, "sandbox", body=RestoreBody, **NO_CONTENT),
    ]
