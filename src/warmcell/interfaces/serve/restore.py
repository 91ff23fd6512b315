"""Brings back everything that the last server with the same `--state` had."""

from __future__ import annotations

from warmcell.interfaces.serve.e2b import restore as e2b
from warmcell.interfaces.serve.e2b.snapshots import snapshots_of
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.saved_sandboxes import restore_sandboxes, save_all
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.v1 import restore as v1
from warmcell.lifetime.threads import in_thread

_RESTORERS = {"e2b": e2b.restore, "v1": v1.restore}


async def restore_all(service: Service) -> None:
    """Before the first request. At the end of the service everything is saved."""
    if service.saved is None:
        return
    await in_thread(snapshots_of(service).load)
    await in_thread(volumes_of(service).load)
    with service.resources.suspend():
        await restore_sandboxes(service, _RESTORERS)
    service.on_stop.append(lambda: save_all(service))
