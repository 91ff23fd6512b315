"""What the next server finds again of an E2B sandbox: its request, its secrets, and whether it is paused."""

from __future__ import annotations

from typing import Any

from warmcell.interfaces.serve.e2b.box import Box
from warmcell.interfaces.serve.e2b.creation import Create, attach_box, make_prepared
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sandboxes import RestoredSandbox
from warmcell.interfaces.serve.saved_state import StateHome
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant


async def restore(service: Service, tenant: Tenant, own: dict[str, Any], home: StateHome) -> RestoredSandbox:
    body = Create.model_validate(own["asked"])
    prepared = await make_prepared(service, tenant, body, home, is_new=False)

    def attach(entry: SandboxEntry) -> None:
        box: Box = attach_box(service, entry, body, prepared)
        box.token, box.traffic_token = str(own["token"]), str(own["traffic_token"])
        box.is_paused = own["is_paused"] is True or (box.auto_pause and entry.is_expired)

    return RestoredSandbox(prepared.sandbox, attach)
