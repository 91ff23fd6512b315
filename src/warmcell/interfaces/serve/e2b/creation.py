"""Make a sandbox for E2B's API, and restore it in the next server."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.core.types import check_env
from warmcell.images import Image
from warmcell.interfaces.serve.e2b import templates
from warmcell.interfaces.serve.e2b.box import HOME, Box
from warmcell.interfaces.serve.e2b.snapshots import copy_snapshot
from warmcell.interfaces.serve.e2b.spares import PreparedSandbox, spares_of
from warmcell.interfaces.serve.e2b.template_builder import (
    READY_SECONDS,
    builds_of,
    copy_template_home,
    is_ready,
    run_start_command,
)
from warmcell.interfaces.serve.e2b.template_records import Build
from warmcell.interfaces.serve.e2b.volumes import release_volumes, remaining_space, use_volumes, volumes_of
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.run_places import ImageChoice
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, check_metadata
from warmcell.interfaces.serve.saved_sandboxes import RestoredSandbox, SavedSandbox, keep_new_sandbox, save_now
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import Home, StateHome
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.net.rules.network_update import read_lists
from warmcell.net.rules.rule_book import Narrowing
from warmcell.sandbox.asynchronous import AsyncSandbox

_log = logging.getLogger("warmcell.serve")
#: The metadata entry that names an image of the server's store, for clients that name images but build no templates.
IMAGE_KEY = "warmcell.image"


#: As many as `/v1` takes: each is parsed on the event loop, and compared with every request of the guest.
Hosts = Annotated[list[str], Field(max_length=1000)]


class Network(BaseModel):
    """Narrows what the server's policy allows. Other fields are ignored."""

    allowOut: Hosts | None = None  # noqa: N815
    denyOut: Hosts | None = None  # noqa: N815
    allow_internet_access: bool | None = None

    @property
    def narrowing(self) -> Narrowing:
        if self.allow_internet_access is False:
            return read_lists(self.allowOut, ["0.0.0.0/0"])
        return read_lists(self.allowOut, self.denyOut)


class AutoResume(BaseModel):
    enabled: bool | None = None


class VolumeMount(BaseModel):
    name: str
    path: str


class Create(BaseModel):
    """A request for a sandbox. Other fields are ignored and not kept: see docs/server.md."""

    templateID: str = "base"  # noqa: N815
    timeout: int = 15
    metadata: dict[str, str] | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    autoPause: bool | None = None  # noqa: N815
    autoResume: AutoResume | None = None  # noqa: N815
    allow_internet_access: bool | None = None
    network: Network | None = None
    volumeMounts: Annotated[list[VolumeMount], Field(max_length=16)] | None = None  # noqa: N815

    def is_offline(self, service: Service) -> bool:
        """Rules cannot narrow the host's own network: a sandbox that asks for less of it gets none."""
        asks_less = self.allow_internet_access is False or (self.network is not None and bool(self.network.denyOut))
        return asks_less and service.has_open_network

    @property
    def first_network(self) -> Network | None:
        """The initial network, until `update_network`; None for all that the policy allows."""
        if self.allow_internet_access is not False:
            return self.network
        return (self.network or Network()).model_copy(update={"allow_internet_access": False})


async def prepare(service: Service, tenant: Tenant, body: Create) -> PreparedSandbox:
    """Take a spare sandbox, or make one."""
    parse_seconds(body.timeout, tenant)
    check_metadata(body.metadata or {})
    service.sandboxes.check_room(tenant)
    if (image := await find_named_image(service, body)) is not None:
        with service.sandboxes.reserve(tenant):
            home = service.make_home()
        return await make_prepared(service, tenant, body, home, image)
    built = await builds_of(service).find(tenant, body.templateID)
    if built is not None:
        return await _make_from_template(service, tenant, body, built[1], built[2])
    snapshot = templates.snapshot_for(service, tenant, body.templateID)
    if snapshot is None and not body.envVars and not body.volumeMounts and not body.is_offline(service):
        spare = spares_of(service).take(tenant)
        if spare is not None:
            return spare
    with service.sandboxes.reserve(tenant):
        home = service.make_home() if snapshot is None else await copy_snapshot(service, snapshot, tenant)
    return await make_prepared(service, tenant, body, home)


async def find_named_image(service: Service, body: Create) -> ImageChoice | None:
    """Find the image that the metadata names, as its USER or root. Raises `ImageNotFound`, or 400 with a template."""
    name = (body.metadata or {}).get(IMAGE_KEY)
    if name is None:
        return None
    if body.templateID not in templates.TEMPLATES:
        template = body.templateID[:80]
        raise HttpError(400, f"the metadata entry {IMAGE_KEY} cannot be combined with the template '{template}'")
    choice = await service.images.find(name)
    return choice if choice is None or choice.image.config.user else replace(choice, user="root")


async def _make_from_template(
    service: Service, tenant: Tenant, body: Create, build: Build, image: Image
) -> PreparedSandbox:
    """Make a sandbox in the image of a template, and run its start command. It counts from the start."""
    with service.sandboxes.reserve(tenant):
        home = await copy_template_home(service, tenant, build)
        prepared = await make_prepared(service, tenant, body, home, ImageChoice(image))
        prepared.build_id = build.id
        async with on_error(prepared.destroy):
            if (network := body.first_network) is not None and not body.is_offline(service):
                await narrow_sandbox(prepared.sandbox, service, network)
            await run_start_command(service, tenant, prepared.sandbox, build)
            await is_ready(prepared.sandbox, build, READY_SECONDS)
    return prepared


async def make_prepared(
    service: Service, tenant: Tenant, body: Create, home: Home, image: ImageChoice | None = None, *, is_new: bool = True
) -> PreparedSandbox:
    with on_error(home.close):
        env = dict(check_env(body.envVars or {}, "envVars"))
        asked = [(mount.name, mount.path) for mount in body.volumeMounts or ()]
        found = volumes_of(service).find_mounts(tenant, asked)
        volumes = use_volumes([volume for volume, _ in found])  # before the first await: now they cannot be removed
        with on_error(lambda: release_volumes(volumes)):
            room = await remaining_space(tenant, volumes, is_new=is_new)
    options: dict[str, Any] = {"mounts": [mount for _, mount in found], "image": image, "disk_mb": room}
    with on_error(lambda: release_volumes(volumes)):
        prepared = PreparedSandbox(service, tenant, home, env, is_offline=body.is_offline(service), **options)
    prepared.volumes = volumes
    return prepared


async def register(service: Service, tenant: Tenant, body: Create, prepared: PreparedSandbox) -> SandboxEntry:
    async with on_error(prepared.destroy):
        seconds = parse_seconds(body.timeout, tenant)
        entry = service.sandboxes.add(lambda: prepared.sandbox, tenant, seconds, body.metadata or {})
    box = attach_box(service, entry, body, prepared)
    if isinstance(prepared.home, StateHome):
        await keep_new_sandbox(service, entry, SavedSandbox("e2b", prepared.home, box.describe))
    else:
        entry.on_close.append(lambda: in_thread(prepared.home.close))
    if (network := body.first_network) is not None and not body.is_offline(service):
        async with on_error(lambda: service.sandboxes.remove(entry)):
            await narrow(entry, service, network)
    return entry


def attach_box(service: Service, entry: SandboxEntry, body: Create, prepared: PreparedSandbox) -> Box:
    prepared.annotations.update(tenant=entry.tenant_id, sandbox=entry.id)
    box = entry.state.put(Box(entry, body, service, prepared.image))
    box.build_id = prepared.build_id
    entry.count_running = box.count_running
    entry.on_close.append(partial(release_volumes, prepared.volumes))
    if (saved := entry.state.find(SavedSandbox)) is not None:
        saved.describe = box.describe
    if box.auto_pause:
        entry.on_expiry = partial(_pause_expired, service, box)
    return box


async def _pause_expired(service: Service, box: Box) -> None:
    await box.pause()
    service.run_in_background(_save_paused(service, box))  # may take long: a sandbox that is not paused soon is removed


async def _save_paused(service: Service, box: Box) -> None:
    try:
        await save_now(service, box.entry)
    except (SandboxError, OSError) as error:  # it stays paused in this server
        _log.error("cannot save the paused sandbox %s: %s", box.entry.id, error)


def parse_seconds(seconds: int, tenant: Tenant) -> float:
    if seconds < 0:
        raise HttpError(400, "Timeout cannot be negative")
    if seconds > tenant.lifetime:
        raise HttpError(400, f"Timeout cannot be greater than {tenant.lifetime // 3600} hours")
    return float(max(seconds, 1))


async def narrow(entry: SandboxEntry, service: Service, network: Network) -> None:
    await narrow_sandbox(entry.sandbox, service, network)
    entry.on_change()


async def narrow_sandbox(sandbox: AsyncSandbox, service: Service, network: Network) -> None:
    narrowing = network.narrowing
    if not service.has_network and network.allowOut:
        raise HttpError(501, "the server's policy has no network")
    await sandbox.update_network(narrowing)  # type: ignore[arg-type]


async def restore_sandbox(service: Service, tenant: Tenant, own: dict[str, Any], home: StateHome) -> RestoredSandbox:
    """Restore a sandbox of the previous server from its request, its secrets, and whether it was paused."""
    body, build = Create.model_validate(own["asked"]), None
    image: ImageChoice | None
    if build_id := own.get("build"):
        build, found = await builds_of(service).find_again(tenant, body.templateID, str(build_id))
        image = ImageChoice(found)
    else:
        image = await find_named_image(service, body)
    prepared = await make_prepared(service, tenant, body, home, image, is_new=False)
    release_volumes(prepared.volumes)  # counted again in `attach`
    prepared.build_id = "" if build is None else build.id
    if body.allow_internet_access is False:  # what was updated later is restored by the caller
        await narrow_sandbox(prepared.sandbox, service, Network(allow_internet_access=False))

    def attach(entry: SandboxEntry) -> None:
        use_volumes(prepared.volumes)
        box: Box = attach_box(service, entry, body, prepared)
        box.token, box.traffic_token = str(own["token"]), str(own["traffic_token"])
        box.is_paused = own["is_paused"] is True or (box.auto_pause and entry.is_expired)
        if build is not None and box.is_paused:
            box.on_first_resume = lambda: service.run_in_background(_start_again(service, tenant, entry, build))
        elif build is not None:
            service.run_in_background(_start_again(service, tenant, entry, build))

    return RestoredSandbox(prepared.sandbox, attach, "" if image is None else f"files outside of {HOME}")


async def _start_again(service: Service, tenant: Tenant, entry: SandboxEntry, build: Build) -> None:
    """Run the template's start command again. If that fails, the sandbox stays, for its files."""
    try:
        await run_start_command(service, tenant, entry.sandbox, build)
    except (HttpError, SandboxError) as error:
        _log.warning("cannot run the start command of sandbox %s: %s", entry.id, error)
