"""E2B's control plane: sandboxes are made, found, paused, prolonged and killed here."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import SandboxError
from warmcell.core.types import check_env
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.e2b import templates
from warmcell.interfaces.serve.e2b.box import Box, box_of, rfc3339
from warmcell.interfaces.serve.e2b.metrics import metrics_of
from warmcell.interfaces.serve.e2b.snapshots import copied, snapshots_of
from warmcell.interfaces.serve.e2b.spares import Housed, spares_of
from warmcell.interfaces.serve.e2b.starts import starts_of
from warmcell.interfaces.serve.exchange import (
    Refused,
    answer,
    parsed,
    read_body,
    refusal,
    status_of,
    told,
    whole_number,
)
from warmcell.interfaces.serve.held_sandboxes import Held, SandboxNotFound
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.private_directory import PrivateDirectory

ENVD_VERSION = "0.6.4"
DEFAULT_SECONDS = 300
PAGE = 100


class Network(BaseModel):
    allowOut: list[str] | None = None  # noqa: N815
    denyOut: list[str] | None = None  # noqa: N815
    allow_internet_access: bool | None = None


class Create(BaseModel):
    """What we do not have (internet, volumes) is taken as it comes and not given: docs/server.md says so.

    Less network than the server's policy has is none: rules of one sandbox alone could not be kept.
    """

    templateID: str = "base"  # noqa: N815
    timeout: int = 15
    metadata: dict[str, str] | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    autoPause: bool | None = None  # noqa: N815
    autoResume: dict[str, Any] | None = None  # noqa: N815
    allow_internet_access: bool | None = None
    network: Network | None = None

    @property
    def is_offline(self) -> bool:
        return self.allow_internet_access is False or (self.network is not None and bool(self.network.denyOut))


class Timeout(BaseModel):
    timeout: int = DEFAULT_SECONDS


class Fork(BaseModel):
    count: Annotated[int, Field(ge=1, le=20)] = 1
    timeout: int = DEFAULT_SECONDS


class Named(BaseModel):
    name: str | None = None


async def create(request: Request, tenant: Tenant) -> Response:
    service = service_of(request)
    body = parsed(await read_body(request, service.settings.max_body), Create)
    turn = await starts_of(service).new_sandbox(tenant.id)
    try:
        held = await _made(service, tenant, body, await _found(service, tenant, body))
    except BaseException:
        turn.end()
        raise
    _box(held).on_first_start = turn.end
    return answer(_handle(held), 201)


async def _found(service: Service, tenant: Tenant, body: Create) -> Housed:
    """One that was made ahead, or a new one."""
    snapshot = templates.snapshot_for(service, tenant, body.templateID)
    _seconds(body.timeout, tenant)
    service.held.check_room(tenant)
    if snapshot is None and not body.envVars and not (body.is_offline and service.has_network):
        spare = spares_of(service).take(tenant)
        if spare is not None:
            return spare
    with service.held.place(tenant):
        home = PrivateDirectory("work") if snapshot is None else await copied(snapshot.home.path, tenant)
    return _housed(service, tenant, body, home)


def _housed(service: Service, tenant: Tenant, body: Create, home: PrivateDirectory) -> Housed:
    try:
        env = dict(check_env(body.envVars or {}, "envVars"))
    except BaseException:
        home.close()
        raise
    return Housed(service, tenant, home, env, is_offline=body.is_offline)


async def _made(service: Service, tenant: Tenant, body: Create, housed: Housed) -> Held:
    try:
        seconds = _seconds(body.timeout, tenant)
        held = service.held.add(lambda: housed.sandbox, tenant, seconds, body.metadata or {})
    except BaseException:
        await housed.destroy()
        raise
    held.on_close.append(lambda: in_thread(housed.home.close))
    box = held.extras["e2b"] = Box(held, body.model_dump(), starts_of(service))
    box.asked = body
    if box.auto_pause:
        held.on_expiry = box.pause
    return held


def _seconds(seconds: int, tenant: Tenant) -> float:
    if seconds < 0:
        raise Refused(400, "Timeout cannot be negative")
    if seconds > tenant.lifetime:
        raise Refused(400, f"Timeout cannot be greater than {tenant.lifetime // 3600} hours")
    return float(max(seconds, 1))


async def connect(request: Request, tenant: Tenant) -> Response:
    service, held = service_of(request), _held(request, tenant)
    body = parsed(await read_body(request, service.settings.max_body) or b"{}", Timeout)
    box, seconds = _box(held), _seconds(body.timeout, tenant)
    was_paused = box.is_paused
    if was_paused:
        await box.resume()
    if was_paused or held.expires < time.time() + seconds:
        service.held.prolong(held, seconds, tenant)
    return answer(_handle(held), 201 if was_paused else 200)


async def kill(request: Request, tenant: Tenant) -> Response:
    held = _held(request, tenant)
    await service_of(request).held.remove(held)
    return Response(status_code=204)


async def info(request: Request, tenant: Tenant) -> Response:
    return answer(_info(_held(request, tenant)))


async def every(request: Request, tenant: Tenant) -> Response:
    asked = request.query_params
    found = [held for held in service_of(request).held.of(tenant) if box_of(held) is not None]
    # Clients quote the pairs, and then the whole once more.
    wanted = dict(parse_qsl(asked.get("metadata", ""))) or dict(parse_qsl(unquote(asked.get("metadata", ""))))
    states = set(",".join(asked.getlist("state")).split(",")) - {""} or {"running", "paused"}
    found = [held for held in found if wanted.items() <= held.metadata.items() and _state(held) in states]
    if after := asked.get("startedAfter"):
        found = [held for held in found if held.created >= _moment(after)]
    if template := asked.get("template"):
        found = [held for held in found if _box(held).template == template]
    found.sort(key=lambda held: held.created, reverse=asked.get("order") != "asc")
    begin, most = _whole(request, "nextToken") or 0, _whole(request, "limit")
    limit = PAGE if most is None else min(PAGE, most)
    headers = {"x-next-token": str(begin + limit)} if begin + limit < len(found) else {}
    return answer([_info(held) for held in found[begin : begin + limit]], headers=headers)


async def set_timeout(request: Request, tenant: Tenant) -> Response:
    service, held = service_of(request), _held(request, tenant)
    body = parsed(await read_body(request, service.settings.max_body), Timeout)
    service.held.prolong(held, _seconds(body.timeout, tenant), tenant)
    return Response(status_code=204)


async def pause(request: Request, tenant: Tenant) -> Response:
    held = _held(request, tenant)
    await read_body(request, service_of(request).settings.max_body)
    if _box(held).is_paused:
        raise Refused(409, "the sandbox is paused already")
    await _box(held).pause()
    service_of(request).held.prolong(held, tenant.lifetime, tenant)
    return Response(status_code=204)


async def resume(request: Request, tenant: Tenant) -> Response:
    held = _held(request, tenant)
    if not _box(held).is_paused:
        raise Refused(409, "the sandbox is not paused")
    return await connect(request, tenant)


async def metrics(request: Request, tenant: Tenant) -> Response:
    begin, end = _whole(request, "start"), _whole(request, "end")
    return answer(await metrics_of(_box(_held(request, tenant)), begin, end))


async def fork(request: Request, tenant: Tenant) -> Response:
    """New sandboxes with the same files. What runs is not in them."""
    service, held = service_of(request), _held(request, tenant)
    body = parsed(await read_body(request, service.settings.max_body) or b"{}", Fork)
    forks: list[dict[str, Any]] = []
    for _ in range(body.count):
        try:
            asked = _box(held).asked.model_copy(update={"timeout": body.timeout, "metadata": held.metadata})
            with service.held.place(tenant):
                home = await copied(held.sandbox.work_dir, tenant)
            forks.append(
                {"sandbox": _handle(await _made(service, tenant, asked, _housed(service, tenant, asked, home)))}
            )
        except Refused as error:
            forks.append({"error": {"code": error.status, "message": error.message}})
    return answer(forks, 201)


async def take_snapshot(request: Request, tenant: Tenant) -> Response:
    service, held = service_of(request), _held(request, tenant)
    body = parsed(await read_body(request, service.settings.max_body) or b"{}", Named)
    made = await snapshots_of(service).take(tenant, held.id, held.sandbox.work_dir, body.name)
    return answer(made.plain(), 201)


async def every_snapshot(request: Request, tenant: Tenant) -> Response:
    source, name = request.query_params.get("sandboxID"), request.query_params.get("name")
    found = snapshots_of(service_of(request)).of(tenant)
    kept = [item for item in found if source in (None, item.source) and (not name or name in (item.id, *item.names))]
    return answer([item.plain() for item in kept])


async def set_network(request: Request, tenant: Tenant) -> Response:
    """What holds already is granted: the network of a cage that stands cannot be changed."""
    service, held = service_of(request), _held(request, tenant)
    body = parsed(await read_body(request, service.settings.max_body) or b"{}", Network)
    has_network = service.has_network and not _box(held).asked.is_offline
    closes = bool(body.denyOut) or body.allow_internet_access is False
    if (closes and has_network) or (body.allowOut and not has_network):
        raise Refused(501, "the network of a sandbox is what it was made with, within this server's policy")
    return Response(status_code=204)


def _whole(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    number = whole_number(text)
    if text and number is None:
        raise Refused(400, f"{name} must be a whole number")
    return number


def _moment(text: str) -> float:
    try:  # a plus sign that was not quoted has become a space; what they were told is cut to microseconds
        return datetime.fromisoformat(text.replace(" ", "+")).timestamp() - 1e-6
    except ValueError:
        raise Refused(400, "startedAfter is no moment") from None


def _held(request: Request, tenant: Tenant) -> Held:
    held = service_of(request).held.find(tenant, request.path_params["id"])
    if box_of(held) is None:
        raise SandboxNotFound("there is no such sandbox")
    return held


def _box(held: Held) -> Box:
    box = box_of(held)
    assert box is not None
    return box


def _state(held: Held) -> str:
    return "paused" if _box(held).is_paused else "running"


def _handle(held: Held) -> dict[str, Any]:
    box = _box(held)
    return {
        "templateID": box.template,
        "sandboxID": held.id,
        "clientID": "warmcell",
        "alias": box.template,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": box.token,
        "trafficAccessToken": box.traffic_token,
        "domain": None,
    }


def _info(held: Held) -> dict[str, Any]:
    times = {"startedAt": rfc3339(held.created), "endAt": rfc3339(held.expires)}
    limits = held.sandbox.limits
    sizes = {"cpuCount": os.cpu_count() or 1, "memoryMB": limits.memory_mb, "diskSizeMB": limits.disk_mb}
    shown = {key: value for key, value in _handle(held).items() if key not in ("trafficAccessToken",)}
    return {**shown, **times, **sizes, "metadata": held.metadata, "state": _state(held)}


def e2b_refusal(error: Exception) -> Response:
    status, message, headers = 500, str(error), {}
    if isinstance(error, Refused):
        status, message, headers = error.status, error.message, error.headers
    elif isinstance(error, SandboxError):
        status, message = status_of(error), told(error)
        status = 400 if status == 422 else status
    else:
        return refusal(error)
    return answer({"code": status, "message": message}, status, headers)


def routes() -> list[Any]:
    made: list[Any] = []

    def add(method: str, path: str, handler: Any) -> None:
        made.append(door(method, path, handler, "sandbox", e2b_refusal))

    for prefix in ("", "/v2"):
        add("POST", f"{prefix}/sandboxes", create)
        add("GET", f"{prefix}/sandboxes", every)
        add("POST", f"{prefix}/sandboxes/{{id}}/connect", connect)
    add("GET", "/sandboxes/{id}", info)
    add("DELETE", "/sandboxes/{id}", kill)
    add("POST", "/sandboxes/{id}/timeout", set_timeout)
    add("POST", "/sandboxes/{id}/pause", pause)
    add("POST", "/sandboxes/{id}/resume", resume)
    add("GET", "/sandboxes/{id}/metrics", metrics)
    add("POST", "/sandboxes/{id}/fork", fork)
    add("POST", "/sandboxes/{id}/snapshots", take_snapshot)
    add("GET", "/snapshots", every_snapshot)
    add("GET", "/templates/aliases/{name:path}", templates.look_up)
    for path in ("/templates", "/v2/templates", "/v3/templates"):
        add("POST", path, templates.build)
    add("DELETE", "/templates/{id:path}", templates.remove)
    add("PUT", "/sandboxes/{id}/network", set_network)
    return made
