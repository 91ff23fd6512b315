"""E2B's templates, what sandboxes are made from: a few by name, and snapshots that a tenant took. None are built."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.e2b.snapshots import Snapshot, snapshots_of
from warmcell.interfaces.serve.exchange import Refused, answer, parsed, read_body
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant

TEMPLATES = ("base", "code-interpreter-v1", "code-interpreter", "mcp-gateway")


class Build(BaseModel):
    """What older clients call an alias is a name to newer ones."""

    name: str | None = None
    alias: str | None = None


def snapshot_for(service: Service, tenant: Tenant, template: str) -> Snapshot | None:
    """What a sandbox of this template begins with; None for those that begin with nothing."""
    found = snapshots_of(service).find(tenant, template)
    if found is None and template not in TEMPLATES:
        raise Refused(404, f"template '{template[:80]}' not found")
    return found


async def look_up(request: Request, tenant: Tenant) -> Response:
    """Clients build what this does not find."""
    name = request.path_params["name"]
    found = snapshot_for(service_of(request), tenant, name)
    return answer({"templateID": name if found is None else found.id, "public": found is None})


async def build(request: Request, tenant: Tenant) -> Response:
    body = parsed(await read_body(request, service_of(request).settings.max_body), Build)
    name = (body.name or body.alias or "")[:80]
    raise Refused(
        501,
        f"no templates are built here, and so not '{name}': sandboxes have what this host has. For one that has "
        "files, make a sandbox with them and take a snapshot under that name; it is then found as a template",
    )


async def remove(request: Request, tenant: Tenant) -> Response:
    snapshots = snapshots_of(service_of(request))
    found = snapshots.find(tenant, request.path_params["id"])
    if found is None:
        raise Refused(404, "there is no such snapshot")
    await snapshots.remove(found)
    return Response(status_code=204)
