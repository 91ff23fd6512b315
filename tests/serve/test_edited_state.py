"""A directory of `--state` that other programs have written to: the server starts, and removes only what is its own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import until_async

from warmcell.interfaces.serve import saved_sandboxes
from warmcell.interfaces.serve.app import restore_all
from warmcell.interfaces.serve.e2b.creation import Create, prepare, register
from warmcell.interfaces.serve.e2b.snapshots import snapshots_of
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.service import Service, local_tenant
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import add_token

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


async def test_a_start_with_another_token_file_removes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It removed every sandbox; and snapshots and volumes, as soon as that file changed."""
    right, wrong, state = str(tmp_path / "right.json"), str(tmp_path / "wrong.json"), str(tmp_path / "state")
    tenant = add_token(right, "one")[1]
    add_token(wrong, "two")
    service = Service(Settings(state=state, tokens=right, spares=0))
    await restore_all(service)
    body = Create(timeout=600)
    box = await register(service, tenant, body, await prepare(service, tenant, body))
    taken = await snapshots_of(service).take(tenant, box.id, box.sandbox.work_dir, None)
    volume = await volumes_of(service).create(tenant, "data")
    await service.aclose()

    service = Service(Settings(state=state, tokens=wrong, spares=0))
    await restore_all(service)
    assert service.sandboxes.all() == []
    assert f"cannot restore sandbox {box.id}: its token is not in the token file" in caplog.text
    add_token(wrong, "three")
    service.reload()
    await service.end_revoked()
    await service.aclose()

    service = Service(Settings(state=state, tokens=right, spares=0))
    await restore_all(service)
    assert [entry.id for entry in service.sandboxes.of(tenant)] == [box.id]
    assert [found.id for found in snapshots_of(service).of(tenant)] == [taken.id]
    assert [found.id for found in volumes_of(service).of(tenant)] == [volume.id]
    Path(right).write_text('{"tokens": []}')
    service.reload()
    await service.end_revoked()
    assert not (service.sandboxes.all() or snapshots_of(service).of(tenant) or volumes_of(service).of(tenant))
    await service.aclose()


async def test_a_clock_that_is_ahead_at_the_start_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sandboxes had expired by it, and were removed before the clock was set."""
    settings, ahead = Settings(state=str(tmp_path / "state"), spares=0), [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead[0], monotonic=time.monotonic)
    monkeypatch.setattr(saved_sandboxes, "time", clock)
    monkeypatch.setattr(saved_sandboxes, "CLOCK_SECONDS", 0.01)
    tenant, body = local_tenant(settings), Create(timeout=600)
    service = Service(settings)
    await restore_all(service)
    made = await register(service, tenant, body, await prepare(service, tenant, body))
    await service.aclose()

    ahead[0] = 1e9
    service = Service(settings)
    await restore_all(service)
    assert service.sandboxes.all() == []
    await service.aclose()
    service = Service(settings)
    await restore_all(service)
    assert service.sandboxes.all() == []
    ahead[0] = 0.0
    await until_async(service.sandboxes.all)
    assert [entry.id for entry in service.sandboxes.all()] == [made.id]
    await service.aclose()
