"""E2B's control plane: make, find, pause, prolong and kill sandboxes; their metrics."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.serve.e2b import templates
from warmcell.interfaces.serve.e2b.box import Box, find_box, starts_of
from warmcell.interfaces.serve.e2b.connect import RpcError
from warmcell.interfaces.serve.e2b.creation import (
    Create,
    Network,
    make_prepared,
    narrow,
    parse_seconds,
    prepare,
    register,
)
from warmcell.interfaces.serve.e2b.snapshots import copy_sandbox, snapshots_of
from warmcell.interfaces.serve.requests import parse_model, read_body, while_connected
from warmcell.interfaces.serve.responses import (
    HttpError,
    error_response,
    json_response,
    parse_whole_number,
    public_message,
    status_of,
)
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.sandbox_registry import MAX_CREATION_BYTES, SandboxEntry, SandboxNotFound
from warmcell.interfaces.serve.saved_sandboxes import save_now, save_sandbox
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant

ENVD_VERSION = "0.6.4"
DEFAULT_SECONDS = 300
PAGE = 100
T = TypeVar("T")
KEPT = 500
#: Clients send whole seconds.
_GRAIN = 1.0


def e2b_refusal(error: Exception) -> Response:
    if isinstance(error, HttpError | SandboxError):
        described = _describe(error)
        headers = error.headers if isinstance(error, HttpError) else None
        return json_response(described, described["code"], headers)
    return error_response(error)


def _describe(error: HttpError | SandboxError) -> dict[str, Any]:
    if isinstance(error, HttpError):
        return {"code": error.status, "message": error.message}
    status = {422: 400, 410: 404}.get(status_of(error), status_of(error))  # the SDKs know these
    return {"code": status, "message": public_message(error)}


class Samples:
    """The metrics of one sandbox, sampled in the cage when a client asks. The last samples are kept."""

    def __init__(self, created: float) -> None:
        self.kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.last_time, self.last_cpu_seconds = created, 0.0


async def metrics_of(box: Box, begin: float | None, end: float | None) -> list[dict[str, Any]]:
    """The samples from `begin` to `end`, oldest first, and a new one if `end` is now and the sandbox is not paused."""
    samples = box.entry.state.get(Samples, lambda: Samples(box.entry.created))
    is_about_now = end is None or end >= time.time() - 2 * _GRAIN
    if is_about_now and not box.is_paused:
        samples.kept.append(await _sample(box, samples))
    first, last = (begin or 0.0) - _GRAIN, (time.time() if end is None else end) + _GRAIN
    return [sample for sample in samples.kept if first <= sample["timestampUnix"] <= last]


async def _sample(box: Box, samples: Samples) -> dict[str, Any]:
    try:
        found = await box.files.ask("usage")
    except RpcError as error:
        raise HttpError(503, error.message, fault="guest") from None
    seconds, memory, disk = (_amount(found.get(name)) for name in ("seconds", "memory", "disk"))
    now = time.time()
    elapsed, used = now - samples.last_time, seconds - samples.last_cpu_seconds
    samples.last_time, samples.last_cpu_seconds = now, seconds
    limits = box.entry.sandbox.limits
    return {
        "timestamp": rfc3339(now),
        "timestampUnix": int(now),
        "cpuCount": os.cpu_count() or 1,
        "cpuUsedPct": round(max(0.0, used) / max(elapsed, 0.001) * 100, 2),
        "memUsed": int(memory),
        "memTotal": (limits.memory_mb or 0) << 20,
        "memCache": 0,
        "diskUsed": int(disk),
        "diskTotal": (limits.disk_mb or 0) << 20,
    }


def _amount(value: object) -> float:
    """A figure from the guest, which can forge anything, also NaN. Raises `HttpError` 503."""
    if not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise HttpError(503, "unexpected answer from the file service of the sandbox", fault="guest")
    return value


class Timeout(BaseModel):
    timeout: int = DEFAULT_SECONDS


class Fork(BaseModel):
    count: Annotated[int, Field(ge=1, le=20)] = 1
    timeout: int = DEFAULT_SECONDS


class Named(BaseModel):
    name: Annotated[str, Field(max_length=256)] | None = None


async def create(request: Request, tenant: Tenant) -> Response:
    service = get_service(request)
    body = parse_model(await read_body(request, min(service.settings.max_body, MAX_CREATION_BYTES)), Create)
    slot = await starts_of(service).new_sandbox(tenant.id)
    with on_error(slot.end):
        entry = await register(service, tenant, body, await prepare(service, tenant, body))
    _box(entry).on_first_start = slot.end
    return json_response(_handle(entry), 201)


async def connect(request: Request, tenant: Tenant) -> Response:
    service, entry = get_service(request), _entry(request, tenant)
    body = parse_model(await read_body(request) or b"{}", Timeout)
    box, seconds = _box(entry), parse_seconds(body.timeout, tenant)
    was_paused = box.is_paused
    if was_paused:
        await box.resume()
        save_sandbox(service, entry)
    if was_paused or not entry.has_left(seconds):
        service.sandboxes.prolong(entry, seconds, tenant)
    return json_response(_handle(entry), 201 if was_paused else 200)


async def kill(request: Request, tenant: Tenant) -> None:
    entry = _entry(request, tenant)
    await get_service(request).sandboxes.remove(entry)


async def info(request: Request, tenant: Tenant) -> Response:
    return json_response(_info(_entry(request, tenant)))


async def list_sandboxes(request: Request, tenant: Tenant) -> Response:
    asked = request.query_params
    found = [entry for entry in get_service(request).sandboxes.of(tenant) if find_box(entry) is not None]
    text = asked.get("metadata", "")
    # Some clients quote the whole once more, and some each name and value.
    pairs = dict(parse_qsl(text if "=" in text else unquote(text), keep_blank_values=True))
    wanted = (pairs.items(), {unquote(name): unquote(value) for name, value in pairs.items()}.items())
    states = set(",".join(asked.getlist("state")).split(",")) - {""} or {"running", "paused"}
    found = [entry for entry in found if any(items <= entry.metadata.items() for items in wanted)]
    found = [entry for entry in found if _state(entry) in states]
    if after := asked.get("startedAfter"):
        found = [entry for entry in found if entry.created >= _parse_timestamp(after)]
    if template := asked.get("template"):
        found = [entry for entry in found if _box(entry).template == template]
    found.sort(key=lambda entry: entry.created, reverse=asked.get("order") != "asc")
    shown, headers = page_of(request, found)
    return json_response([_info(entry) for entry in shown], headers=headers)


def page_of(request: Request, found: list[T]) -> tuple[list[T], dict[str, str]]:
    """The page that the request asks for, and the header that names the next one. Raises `HttpError` 400."""
    begin, limit = _whole(request, "nextToken") or 0, _whole(request, "limit")
    if limit == 0:
        raise HttpError(400, "limit must be at least 1")
    limit = min(PAGE, limit or PAGE)
    headers = {"x-next-token": str(begin + limit)} if begin + limit < len(found) else {}
    return found[begin : begin + limit], headers


async def set_timeout(request: Request, tenant: Tenant) -> None:
    service, entry = get_service(request), _entry(request, tenant)
    body = parse_model(await read_body(request), Timeout)
    service.sandboxes.prolong(entry, parse_seconds(body.timeout, tenant), tenant)


async def pause(request: Request, tenant: Tenant) -> None:
    entry = _entry(request, tenant)
    await read_body(request)
    if _box(entry).is_paused:
        raise HttpError(409, "the sandbox is already paused")
    await _box(entry).pause()
    try:
        get_service(request).sandboxes.prolong(entry, tenant.lifetime, tenant)
        await save_now(get_service(request), entry)
    except SandboxError:  # clients rely on what a paused sandbox has saved
        with suppress(SandboxError):
            await _box(entry).resume()
        raise


async def resume(request: Request, tenant: Tenant) -> Response:
    entry = _entry(request, tenant)
    if not _box(entry).is_paused:
        raise HttpError(409, "the sandbox is not paused")
    return await connect(request, tenant)


async def metrics(request: Request, tenant: Tenant) -> Response:
    begin, end = _whole(request, "start"), _whole(request, "end")
    return json_response(await metrics_of(_box(_entry(request, tenant)), begin, end))


async def fork(request: Request, tenant: Tenant) -> Response:
    """New sandboxes with the same files, without the processes."""
    service, entry = get_service(request), _entry(request, tenant)
    body = parse_model(await read_body(request) or b"{}", Fork)
    _refuse_in_image(entry)
    return json_response(await while_connected(request, _make_forks(service, tenant, entry, body)), 201)


async def _make_forks(service: Service, tenant: Tenant, entry: SandboxEntry, body: Fork) -> list[dict[str, Any]]:
    """Make the forks. If the client leaves meanwhile, all are removed: it has not got their ids."""
    forks, made = list[dict[str, Any]](), list[SandboxEntry]()

    async def remove_forks() -> None:
        await asyncio.gather(*map(service.sandboxes.remove, made), return_exceptions=True)

    async with on_error(remove_forks):
        for _ in range(body.count):
            try:
                asked = _box(entry).asked.model_copy(update={"timeout": body.timeout, "metadata": entry.metadata})
                with service.sandboxes.reserve(tenant):
                    home = await copy_sandbox(service, entry, tenant)
                prepared = await make_prepared(service, tenant, asked, home)
                made.append(await register(service, tenant, asked, prepared))
                forks.append({"sandbox": _handle(made[-1])})
            except (HttpError, SandboxError) as error:
                if isinstance(error, SandboxError) and not forks:
                    raise
                forks.append({"error": _describe(error)})  # those before it are the client's
    return forks


def _refuse_in_image(entry: SandboxEntry) -> None:
    if _box(entry).image is not None:
        raise HttpError(501, "a sandbox of a built template cannot be copied: its changes to the image would be lost")


async def take_snapshot(request: Request, tenant: Tenant) -> Response:
    service, entry = get_service(request), _entry(request, tenant)
    body = parse_model(await read_body(request) or b"{}", Named)
    _refuse_in_image(entry)
    if body.name in templates.TEMPLATES:
        raise HttpError(403, f"the name '{body.name}' is reserved")
    taking = snapshots_of(service).take(tenant, entry.id, entry.sandbox.work_dir, body.name)
    made = await while_connected(request, taking)  # it counts until it is removed, and needs its id for that
    return json_response(made.plain(), 201)


async def list_snapshots(request: Request, tenant: Tenant) -> Response:
    source, name = request.query_params.get("sandboxID"), request.query_params.get("name")
    found = snapshots_of(get_service(request)).of(tenant)
    kept = [item for item in found if source in (None, item.source) and (not name or name in (item.id, *item.names))]
    shown, headers = page_of(request, kept)
    return json_response([item.plain() for item in shown], headers=headers)


async def set_network(request: Request, tenant: Tenant) -> None:
    """Replaces the narrowing of the server's policy; connections that are no longer allowed are closed."""
    service, entry = get_service(request), _entry(request, tenant)
    body = parse_model(await read_body(request, min(service.settings.max_body, MAX_CREATION_BYTES)) or b"{}", Network)
    await narrow(entry, service, body)
    box = _box(entry)
    # For forks.
    box.asked = box.asked.model_copy(update={"network": body, "allow_internet_access": body.allow_internet_access})


def _whole(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    number = parse_whole_number(text)
    if text and number is None:
        raise HttpError(400, f"{name} must be a whole number")
    return number


def _parse_timestamp(text: str) -> float:
    try:  # an unquoted plus sign arrives as a space; clients cut times to microseconds
        return datetime.fromisoformat(text.replace(" ", "+")).timestamp() - 1e-6
    except ValueError:
        raise HttpError(400, "startedAfter is not a timestamp") from None


def _entry(request: Request, tenant: Tenant) -> SandboxEntry:
    entry = get_service(request).sandboxes.find(tenant, request.path_params["id"])
    if find_box(entry) is None:
        raise SandboxNotFound("sandbox not found")
    return entry


def _box(entry: SandboxEntry) -> Box:
    box = find_box(entry)
    assert box is not None
    return box


def _state(entry: SandboxEntry) -> str:
    return "paused" if _box(entry).is_paused else "running"


def _handle(entry: SandboxEntry) -> dict[str, Any]:
    box = _box(entry)
    return {
        "templateID": box.template,
        "sandboxID": entry.id,
        "clientID": "warmcell",
        "alias": box.template,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": box.token,
        "trafficAccessToken": box.traffic_token,
        "domain": None,
    }


def _info(entry: SandboxEntry) -> dict[str, Any]:
    times = {"startedAt": rfc3339(entry.created), "endAt": rfc3339(entry.expires)}
    limits = entry.sandbox.limits
    sizes = {"cpuCount": os.cpu_count() or 1, "memoryMB": limits.memory_mb, "diskSizeMB": limits.disk_mb}
    shown = {key: value for key, value in _handle(entry).items() if key not in ("trafficAccessToken",)}
    mounts = [mount.model_dump() for mount in _box(entry).asked.volumeMounts or ()]
    return {**shown, **times, **sizes, "metadata": entry.metadata, "state": _state(entry), "volumeMounts": mounts}


def routes() -> list[Any]:
    made: list[Any] = []

    def add(method: str, path: str, handler: Any) -> None:
        made.append(route(method, path, handler, "sandbox", e2b_refusal))

    for prefix in ("", "/v2"):
        add("POST", f"{prefix}/sandboxes", create)
        add("GET", f"{prefix}/sandboxes", list_sandboxes)
        add("POST", f"{prefix}/sandboxes/{{id}}/connect", connect)
    add("GET", "/sandboxes/{id}", info)
    add("DELETE", "/sandboxes/{id}", kill)
    add("POST", "/sandboxes/{id}/timeout", set_timeout)
    add("POST", "/sandboxes/{id}/pause", pause)
    add("POST", "/sandboxes/{id}/resume", resume)
    add("GET", "/sandboxes/{id}/metrics", metrics)
    add("POST", "/sandboxes/{id}/fork", fork)
    add("POST", "/sandboxes/{id}/snapshots", take_snapshot)
    add("GET", "/snapshots", list_snapshots)
    add("GET", "/templates/aliases/{name:path}", templates.look_up)
    for path in ("/templates", "/v2/templates", "/v3/templates"):
        add("POST", path, templates.request_build)
        add("GET", path, templates.list_templates)
    add("POST", "/templates/tags", templates.assign_tags)
    add("DELETE", "/templates/tags", templates.remove_tags)
    place, owner = "/templates/uploads/{owner}/{hash}", templates.uploader_of
    made.append(route("PUT", place, templates.upload, None, e2b_refusal, owner))
    at, build = "/templates/{id:path}", "/builds/{build}"
    add("GET", f"{at}/tags", templates.tags_of)
    add("GET", f"{at}/files/{{hash}}", templates.upload_link)
    add("GET", f"{at}{build}/status", templates.status)
    add("POST", f"/v2{at}{build}", templates.start_build)
    add("GET", at, templates.describe_template)
    add("DELETE", at, templates.remove)
    add("PUT", "/sandboxes/{id}/network", set_network)
    return made
