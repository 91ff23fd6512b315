"""What the next server finds again of an E2B sandbox: its request, its secrets, and whether it is paused."""

from __future__ import annotations

import logging
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.e2b.box import HOME, Box
from warmcell.interfaces.serve.e2b.creation import (
    Create,
    Network,
    attach_box,
    find_named_image,
    make_prepared,
    narrow_sandbox,
)
from warmcell.interfaces.serve.e2b.template_builder import builds_of
from warmcell.interfaces.serve.e2b.template_records import Build
from warmcell.interfaces.serve.e2b.template_start import run_start_command
from warmcell.interfaces.serve.run_places import ImageChoice
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sandboxes import RestoredSandbox
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import StateHome
from warmcell.interfaces.serve.tokens import Tenant

_log = logging.getLogger("warmcell.serve")


async def restore(service: Service, tenant: Tenant, own: dict[str, Any], home: StateHome) -> RestoredSandbox:
    body, build = Create.model_validate(own["asked"]), None
    image: ImageChoice | None
    if build_id := own.get("build"):
        build, found = await builds_of(service).find_again(tenant, body.templateID, str(build_id))
        image = ImageChoice(found)
    else:
        image = await find_named_image(service, body)
    prepared = await make_prepared(service, tenant, body, home, image, is_new=False)
    prepared.build_id = "" if build is None else build.id
    if body.allow_internet_access is False:  # what was updated later is restored by the caller
        await narrow_sandbox(prepared.sandbox, service, Network(allow_internet_access=False))

    def attach(entry: SandboxEntry) -> None:
        box: Box = attach_box(service, entry, body, prepared)
        box.token, box.traffic_token = str(own["token"]), str(own["traffic_token"])
        box.is_paused = own["is_paused"] is True or (box.auto_pause and entry.is_expired)
        if build is not None and box.is_paused:
            box.on_first_resume = lambda: service.run_in_background(_start_again(entry, build))
        elif build is not None:
            service.run_in_background(_start_again(entry, build))

    return RestoredSandbox(prepared.sandbox, attach, "" if image is None else f"files outside of {HOME}")


async def _start_again(entry: SandboxEntry, build: Build) -> None:
    """Run the template's start command. The sandbox stays without it, for its files."""
    try:
        await run_start_command(entry.sandbox, build)
    except SandboxError as error:
        _log.warning("cannot run the start command of sandbox %s: %s", entry.id, error)
