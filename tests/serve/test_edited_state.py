"""A directory of `--state` that other programs have written to: the server starts, and removes only what is its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from warmcell.interfaces.serve.app import restore_all
from warmcell.interfaces.serve.e2b.creation import Create, prepare, register
from warmcell.interfaces.serve.service import Service, local_tenant
from warmcell.interfaces.serve.settings import Settings

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


async def test_odd_records_do_not_stop_the_server(tmp_path: Path) -> None:
    settings, worker = Settings(state=str(tmp_path / "state"), spares=0), tmp_path / "state/worker-0"
    tenant, body = local_tenant(settings), Create(timeout=600)
    service = Service(settings)
    await restore_all(service)
    fine, without_secret, odd_loss = [
        await register(service, tenant, body, await prepare(service, tenant, body)) for _ in range(3)
    ]
    await service.aclose()
    edit(worker / f"records/{without_secret.id}.json", own={"asked": {}, "is_paused": False})
    edit(worker / f"records/{odd_loss.id}.json", lost=[1])
    (worker / "snapshots/snapshot-a.json").write_text(json.dumps({"id": "snapshot-a", "names": 5}))
    before = sorted((worker / "homes").iterdir())

    service = Service(settings)
    await restore_all(service)
    assert {entry.id for entry in service.sandboxes.all()} == {fine.id, odd_loss.id}
    await service.aclose()
    assert sorted((worker / "homes").iterdir()) == before  # also that of the damaged record


async def test_links_are_not_followed_when_unused_files_are_removed(tmp_path: Path) -> None:
    settings, worker = Settings(state=str(tmp_path / "state"), spares=0), tmp_path / "state/worker-0"
    other = tmp_path / "other"
    other.mkdir()
    (other / "canary").touch()
    kinds = ("homes", "packages", "sessions", "volumes")
    for kind in kinds:
        (worker / kind / "directory").mkdir(parents=True)
        (worker / kind / "file").touch()
        (worker / kind / "link").symlink_to(other)
        os.mkfifo(worker / kind / "pipe")
    service = Service(settings)
    await restore_all(service)
    await service.aclose()
    assert (other / "canary").exists()
    assert {kind: sorted(os.listdir(worker / kind)) for kind in kinds} == {kind: ["link", "pipe"] for kind in kinds}
