"""E2B's templates: a few fixed names, the snapshots of a tenant, and the images that it builds."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.timestamps import rfc3339
from warmcell.core.types import MIB
from warmcell.interfaces.serve.e2b.snapshots import Snapshot, snapshots_of
from warmcell.interfaces.serve.e2b.template_build import StartBuild
from warmcell.interfaces.serve.e2b.template_builder import builds_of
from warmcell.interfaces.serve.e2b.template_records import (
    DEFAULT_TAG,
    ERROR,
    READY,
    UPLOAD_SECONDS,
    Build,
    Template,
    TemplateRecords,
    check_hash,
    check_tag,
    parse_name,
)
from warmcell.interfaces.serve.requests import MORE_BODY_SECONDS, parse_model, read_body
from warmcell.interfaces.serve.responses import HttpError, json_response, parse_whole_number
from warmcell.interfaces.serve.sandbox_registry import MAX_CREATION_BYTES
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread

#: Templates without an image: their sandboxes have the programs of this host.
TEMPLATES = ("base", "code-interpreter-v1", "code-interpreter", "mcp-gateway")
#: Tags of one template. All are read at each request that names a template of the tenant.
MAX_TAGS = 1000
#: Log entries in one response, as E2B has it.
LOG_PAGE = 100
Names = Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=64)]


class RequestBuild(BaseModel):
    """Older clients send the name as `alias`. Processors and memory are those of the server's policy."""

    name: str | None = None
    alias: str | None = None
    tags: Names | None = None


class AssignTags(BaseModel):
    target: str
    tags: Names


class RemoveTags(BaseModel):
    name: str
    tags: Names


def snapshot_for(service: Service, tenant: Tenant, template: str) -> Snapshot | None:
    """Find the snapshot that this template names; None for a template without files. Raises 404 if it is unknown."""
    found = snapshots_of(service).find(tenant, template)
    if found is None and template not in TEMPLATES:
        raise HttpError(404, f"template '{template[:80]}' not found")
    return found


def _records(request: Request, tenant: Tenant) -> TemplateRecords:
    return builds_of(get_service(request)).records(tenant)


async def _read(request: Request, kind: Any) -> Any:
    """Read a body, which a build keeps while it waits for others."""
    most = min(get_service(request).settings.max_body, MAX_CREATION_BYTES)
    return parse_model(await read_body(request, most), kind)


async def look_up(request: Request, tenant: Tenant) -> Response:
    """Tell a client whether the template exists; if not, it builds it."""
    name = request.path_params["name"]
    own = await in_thread(partial(_records(request, tenant).find, name))
    if own is not None:
        return json_response({"templateID": own.id, "public": False})
    found = snapshot_for(get_service(request), tenant, name)
    return json_response({"templateID": name if found is None else found.id, "public": found is None})


async def list_templates(request: Request, tenant: Tenant) -> Response:
    templates = await in_thread(_records(request, tenant).all)
    return json_response([_summary(template) for template in templates])


async def describe_template(request: Request, tenant: Tenant) -> Response:
    template = await in_thread(partial(_records(request, tenant).get, request.path_params["id"]))
    builds = [_build_to_dict(build) for build in template.builds.values()]
    return json_response({**_summary(template), "builds": builds})


async def request_build(request: Request, tenant: Tenant) -> Response:
    """Add a build to a template. It waits for its files and its start."""
    body = await _read(request, RequestBuild)
    name, tag = parse_name(body.name or body.alias or "")
    if name in TEMPLATES:
        raise HttpError(403, f"the name '{name}' is reserved")
    extra = [check_tag(item.rpartition(":")[2]) for item in body.tags or ()]
    tags = list(dict.fromkeys([*([tag] if tag else []), *extra])) or [DEFAULT_TAG]
    template, build = await in_thread(
        partial(_records(request, tenant).request_build, name, tags, max(1, tenant.templates))
    )
    made = {"templateID": template.id, "buildID": build.id, "public": False}
    return json_response(made | {"names": [name], "aliases": [name], "tags": tags}, 202)


async def upload_link(request: Request, tenant: Tenant) -> Response:
    """Respond whether the archive exists, and with the URL to upload it."""
    await in_thread(partial(_records(request, tenant).get, request.path_params["id"]))
    uploads, digest = builds_of(get_service(request)).uploads, check_hash(request.path_params["hash"])
    most = max(1, tenant.disk_mb) * MIB
    is_present = await in_thread(lambda: os.path.exists(uploads.path_of(tenant.id, digest)))
    path = await in_thread(lambda: uploads.sign(tenant.id, digest, most))
    return json_response({"present": is_present, "url": str(request.base_url).rstrip("/") + path}, 201)


def uploader_of(request: Request) -> Tenant:
    """The tenant that a signed upload URL was made for. Raises `HttpError` 403 if it is invalid or its token is."""
    service, asked = get_service(request), request.query_params
    owner, digest = request.path_params["owner"], request.path_params["hash"]
    names = ("expires", "most", "signature")
    builds_of(service).uploads.check(owner, digest, *(asked.get(name, "") for name in names))
    tenant = service.find_tenant_by_id(owner)
    if tenant is None or "sandbox" not in tenant.scopes:
        raise HttpError(403, "the upload URL is invalid or has expired")
    return tenant


async def upload(request: Request, tenant: Tenant) -> Response:
    """Receive an archive from a client that has the signed URL, which ends with its tenant's token."""
    uploads, digest = builds_of(get_service(request)).uploads, request.path_params["hash"]
    request.scope[MORE_BODY_SECONDS] = UPLOAD_SECONDS
    await uploads.receive(tenant.id, digest, int(request.query_params["most"]), request.stream())
    return Response(status_code=200)


async def start_build(request: Request, tenant: Tenant) -> Response:
    body = await _read(request, StartBuild)
    template, build = await in_thread(partial(_records(request, tenant).get_build, *_ids(request)))
    await builds_of(get_service(request)).start(tenant, template.id, build.id, body)
    return Response(status_code=202)


async def status(request: Request, tenant: Tenant) -> Response:
    """The state of a build, and a page of its log."""
    records = _records(request, tenant)
    template, build = await in_thread(partial(records.get_build, *_ids(request)))
    offset = parse_whole_number(request.query_params.get("logsOffset") or "0")
    limit = parse_whole_number(request.query_params.get("limit") or str(LOG_PAGE))
    if offset is None or limit is None:
        raise HttpError(400, "logsOffset and limit must be whole numbers")
    entries = await in_thread(lambda: records.read_log(build.id, offset, min(limit, LOG_PAGE)))
    shown: dict[str, Any] = {"templateID": template.id, "buildID": build.id, "status": build.status}
    if build.status == ERROR:
        shown["reason"] = {"message": build.message, "logEntries": []} | ({"step": build.step} if build.step else {})
    return json_response(shown | {"logEntries": entries, "logs": [entry["message"] for entry in entries]})


async def assign_tags(request: Request, tenant: Tenant) -> Response:
    body = await _read(request, AssignTags)
    name, tag = parse_name(body.target)
    tags = [_own_tag(item, name) for item in body.tags]
    records = _records(request, tenant)

    def assign() -> str:
        template = records.get(name)
        with records.change(template.id) as changed:
            build = changed.build_of(tag or DEFAULT_TAG)
            if build is None or build.status != READY:
                raise HttpError(404, f"template '{body.target[:80]}' has no finished build with this tag")
            changed.tags.update({item: (build.id, time.time()) for item in tags})
            if len(changed.tags) > MAX_TAGS:
                raise HttpError(429, f"the template already has {MAX_TAGS} tags; remove some")
            return build.id

    return json_response({"buildID": await in_thread(assign), "tags": tags}, 201)


def _own_tag(text: str, name: str) -> str:
    """Parse a tag, which may follow the template's name."""
    owner, colon, tag = text.rpartition(":")
    if colon and owner != name:
        raise HttpError(400, f"'{text[:80]}' is not a tag of the template '{name}'")
    return check_tag(tag)


async def remove_tags(request: Request, tenant: Tenant) -> None:
    service, body = get_service(request), await _read(request, RemoveTags)
    name, records = parse_name(body.name)[0], _records(request, tenant)

    def remove() -> None:
        with records.change(records.get(name).id) as template:
            for tag in body.tags:
                template.tags.pop(_own_tag(tag, name), None)
            template.drop_unnamed()

    await in_thread(remove)
    await builds_of(service).remove_leftovers(tenant)


async def tags_of(request: Request, tenant: Tenant) -> Response:
    template = await in_thread(partial(_records(request, tenant).get, request.path_params["id"]))
    rows = [
        {"tag": tag, "buildID": build, "createdAt": rfc3339(created)} for tag, (build, created) in template.tags.items()
    ]
    return json_response(rows)


async def remove(request: Request, tenant: Tenant) -> None:
    """Remove a template with all of its builds, or a snapshot."""
    service, name = get_service(request), request.path_params["id"]
    records, builds = _records(request, tenant), builds_of(service)
    own = await in_thread(partial(records.find, name))
    if own is not None:
        await in_thread(partial(records.remove, own.id))
        for build in own.builds:
            await builds.cancel(build)
        await builds.remove_leftovers(tenant)
        return
    snapshots = snapshots_of(service)
    found = snapshots.find(tenant, name)
    if found is None:
        raise HttpError(404, "template or snapshot not found")
    await snapshots.remove(found)


def _ids(request: Request) -> tuple[str, str]:
    return request.path_params["id"], request.path_params["build"]


def _summary(template: Template) -> dict[str, Any]:
    latest = max(template.builds.values(), key=lambda build: build.created, default=None)
    return {
        "templateID": template.id,
        "buildID": "" if latest is None else latest.id,
        "names": [template.name],
        "aliases": [template.name],
        "public": False,
        "createdAt": rfc3339(template.created),
        "updatedAt": rfc3339(template.created if latest is None else latest.updated),
        "buildStatus": ERROR if latest is None else latest.status,
        "buildCount": len(template.builds),
        "spawnCount": 0,
        "lastSpawnedAt": None,
        "createdBy": None,
        "cpuCount": 1,
        "memoryMB": 0,
        "diskSizeMB": 0,
        "envdVersion": "",
    }


def _build_to_dict(build: Build) -> dict[str, Any]:
    times = {"createdAt": rfc3339(build.created), "updatedAt": rfc3339(build.updated)}
    return {"buildID": build.id, "status": build.status, "cpuCount": 1, "memoryMB": 0, **times}
