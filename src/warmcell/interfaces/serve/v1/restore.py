"""What the next server finds again of a sandbox of `/v1`: the request that made it."""

from __future__ import annotations

from typing import Any

from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sandboxes import RestoredSandbox, SavedSandbox
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import StateHome
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import CreateBody
from warmcell.interfaces.serve.v1.sandbox_state import keep_sessions
from warmcell.interfaces.serve.v1.sandboxes import choose_options, describe


async def restore(service: Service, tenant: Tenant, own: dict[str, Any], home: StateHome) -> RestoredSandbox:
    body = CreateBody.model_validate(own["asked"])
    options = await choose_options(service, tenant, body)
    sandbox = service.make_sandbox(tenant, **options, work_dir=home.path)

    def attach(entry: SandboxEntry) -> None:
        entry.has_gpu = options["gpus"] is not None
        saved = entry.state.find(SavedSandbox)
        assert saved is not None
        saved.describe = lambda: describe(body)
        keep_sessions(entry)

    return RestoredSandbox(sandbox, attach)
