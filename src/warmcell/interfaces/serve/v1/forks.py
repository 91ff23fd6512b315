"""`/v1/sandboxes/{id}/fork` and `/snapshots`: the work directory as it was, here or in a sandbox of its own."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import NOTHING, door
from warmcell.interfaces.serve.exchange import Refused, answer, read_model
from warmcell.interfaces.serve.service import held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.living_models import ForkBody, RestoreBody
from warmcell.interfaces.serve.v1.sandboxes import plain_sandbox

#: Each may take as much of the disk as the sandbox itself.
MOST_SNAPSHOTS = 8


async def fork(request: Request, tenant: Tenant) -> Response:
    """A new sandbox with the same rules and a copy of the work directory; what runs stays behind."""
    held, service = held_of(request, tenant), service_of(request)
    body = await read_model(request, ForkBody, service.settings.max_body)
    made = await service.held.add_slowly(
        lambda: held.sandbox.fork(body.snapshot), tenant, body.lifetime, held.metadata | body.metadata
    )
    return answer(plain_sandbox(made), 201)


async def snapshot(request: Request, tenant: Tenant) -> Response:
    """Copies the work directory aside, until the sandbox ends."""
    held = held_of(request, tenant)
    if held.extras.get("snapshots", 0) >= MOST_SNAPSHOTS:
        raise Refused(429, f"the sandbox has {MOST_SNAPSHOTS} snapshots already", headers={"Retry-After": "60"})
    held.extras["snapshots"] = held.extras.get("snapshots", 0) + 1
    try:
        taken = await held.sandbox.snapshot()
    except BaseException:
        held.extras["snapshots"] -= 1
        raise
    return answer({"id": str(taken), "skipped": list(taken.skipped)}, 201)


async def restore(request: Request, tenant: Tenant) -> Response:
    """Puts the work directory back to a snapshot."""
    held = held_of(request, tenant)
    body = await read_model(request, RestoreBody, service_of(request).settings.max_body)
    await held.sandbox.restore(body.snapshot)
    return Response(status_code=204)


def routes() -> list[Any]:
    at = "/v1/sandboxes/{id}"
    return [
        door("POST", f"{at}/fork", fork, "sandbox", body=ForkBody, answers=("Sandbox",), status=201),
        door("POST", f"{at}/snapshots", snapshot, "sandbox", answers=("Snapshot",), status=201),
        door("POST", f"{at}/restore", restore, "sandbox", body=RestoreBody, **NOTHING),
    ]
