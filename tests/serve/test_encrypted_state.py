"""A server with `--state` and a key, in this process: what is saved, what is refused, and what stays."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.interfaces.serve.app import restore_all
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sandboxes import SavedSandbox, keep_new_sandbox, save_now
from warmcell.interfaces.serve.service import Service, local_tenant
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.state_homes import SealedFiles

pytest.importorskip("cryptography")
pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=str(tmp_path / "state"), state_key="1a" * 32)


@asynccontextmanager
async def serve(settings: Settings) -> AsyncIterator[Service]:
    service = Service(settings)
    await restore_all(service)
    try:
        yield service
    finally:
        await service.aclose()


async def add_sandbox(service: Service, word: str) -> SandboxEntry:
    assert service.saved is not None
    home = service.saved.make_home()
    tenant = local_tenant(service.settings)
    entry = service.sandboxes.add(lambda: service.make_sandbox(tenant, work_dir=home.path), tenant, 600.0, {"w": word})
    await keep_new_sandbox(service, entry, SavedSandbox("v1", home, lambda: {"asked": {}}))
    Path(home.path, "file").write_text(word)
    return entry


def read_files(service: Service) -> dict[str, str]:
    return {entry.metadata["w"]: Path(entry.sandbox.work_dir, "file").read_text() for entry in service.sandboxes.all()}


@pytest.mark.claim("WC-ST-1")
async def test_damage_costs_one_sandbox_and_removes_nothing(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(settings) as service:
        for word in ("one", "two"):
            await add_sandbox(service, word)
        hit = service.sandboxes.all()[0].state.find(SavedSandbox)
        assert hit is not None and service.saved is not None
        plain, sealed = hit.home.path, Path(service.saved.path, "homes", hit.home.name)
    assert not os.path.exists(plain)
    (pack,) = (sealed / "packs").iterdir()
    content = pack.read_bytes()
    pack.write_bytes(content[:-200])
    with caplog.at_level(logging.WARNING, "warmcell.serve"):
        async with serve(settings) as service:
            assert read_files(service) == {"two": "two"}
    assert "cannot restore sandbox" in caplog.text and ": the store is damaged" in caplog.text
    pack.write_bytes(content)  # from a backup
    async with serve(settings) as service:
        assert read_files(service) == {"one": "one", "two": "two"}


async def test_what_was_saved_before_stays_until_it_is_replaced(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that fails at any of its steps, and a kill right after it: no clean-up of this server is involved."""
    async with serve(settings) as service:
        entry = await add_sandbox(service, "saved")
        await save_now(service, entry)
        Path(entry.sandbox.work_dir, "file").write_text("later")
        assert service.saved is not None

        def fail(*_: object, **__: object) -> None:
            raise ExecutionFailed("the disk is full")

        for where, name in ((SealedFiles, "save"), (type(service.saved), "put")):
            with monkeypatch.context() as patch, pytest.raises(SandboxError, match="full"):
                patch.setattr(where, name, fail)
                await save_now(service, entry)
        monkeypatch.setattr(SealedFiles, "save", fail)  # and at the stop
    monkeypatch.undo()
    async with serve(settings) as service:
        assert read_files(service) == {"saved": "saved"}


async def test_a_sandbox_that_was_never_saved_is_named(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(settings) as service:
        await add_sandbox(service, "lost")
        service.on_stop.clear()  # as if it was killed
        assert service.saved is not None
        service.saved.is_closing = True
    with caplog.at_level(logging.WARNING, "warmcell.serve"):
        async with serve(settings) as service:
            assert service.sandboxes.all() == []
    assert "its files were never saved" in caplog.text


async def test_what_cannot_be_saved_is_named(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(settings) as service:
        entry = await add_sandbox(service, "one")
        os.mkfifo(Path(entry.sandbox.work_dir, "pipe"))
    with caplog.at_level(logging.WARNING, "warmcell.serve"):
        async with serve(settings) as service:
            assert read_files(service) == {"one": "one"}
    assert "; lost: 1 files that cannot be saved, such as 'pipe'" in caplog.text


async def test_saves_of_one_sandbox_wait_for_each_other(settings: Settings) -> None:
    async with serve(settings) as service:
        entry = await add_sandbox(service, "one")
        await asyncio.gather(*(save_now(service, entry) for _ in range(4)))
        saved = entry.state.find(SavedSandbox)
        assert saved is not None and service.saved is not None
        versions = os.listdir(os.path.join(service.saved.path, "homes", saved.home.name, "snapshots"))
        assert versions == [saved.home.version]


async def test_volumes_need_an_option(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    tenant = local_tenant(settings)
    plain = Settings(state=settings.state, state_key=settings.state_key, plain_volumes=True)
    with caplog.at_level(logging.WARNING, "warmcell.serve"):
        async with serve(plain) as service:
            made = await volumes_of(service).create(tenant, "data")
            Path(made.path, "file").write_text("kept")
    assert "volumes are not encrypted" in caplog.text
    async with serve(settings) as service:
        for ask in (lambda: volumes_of(service).find_mounts(tenant, [("data", "/mnt")]), None):
            with pytest.raises(HttpError, match="--plain-volumes"):
                ask() if ask else await volumes_of(service).create(tenant, "other")
    async with serve(plain) as service:
        (found,) = volumes_of(service).of(tenant)
        assert Path(found.path, "file").read_text() == "kept"


async def test_a_damaged_record_of_a_volume_does_not_remove_it(tmp_path: Path) -> None:
    settings = Settings(state=str(tmp_path / "state"))
    async with serve(settings) as service:
        made = await volumes_of(service).create(local_tenant(settings), "data")
        Path(made.path, "file").write_text("kept")
    Path(made.path + ".json").write_text("{")
    async with serve(settings) as service:
        assert volumes_of(service).of(local_tenant(settings)) == []
    assert Path(made.path, "file").read_text() == "kept"
