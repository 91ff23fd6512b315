"""A volume counts as mounted from the moment a new sandbox has found it, before its client has the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmcell.core.errors import SandboxDestroyed
from warmcell.interfaces.serve.e2b import creation
from warmcell.interfaces.serve.e2b.creation import Create, make_prepared
from warmcell.interfaces.serve.e2b.volumes import Volume, release_volumes, use_volumes, volumes_of
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings

BODY = Create.model_validate({"volumeMounts": [{"name": "v", "path": "/mnt/v"}]})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service(Settings())
    yield made
    await made.aclose()


async def test_a_volume_of_a_sandbox_that_is_being_made_stays(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were removed while the template's start command used them."""
    is_measuring, may_end = asyncio.Event(), asyncio.Event()

    async def measure(*_: Any, **__: Any) -> int:
        is_measuring.set()
        await may_end.wait()
        return 1

    monkeypatch.setattr(creation, "remaining_space", measure)
    volume = await volumes_of(service).create(LOCAL_TENANT, "v")
    making = asyncio.ensure_future(make_prepared(service, LOCAL_TENANT, BODY, service.make_home()))
    await is_measuring.wait()
    with pytest.raises(HttpError, match="mounted in 1"):
        await volumes_of(service).remove(volume)
    may_end.set()
    prepared = await making
    with pytest.raises(HttpError, match="mounted in 1"):
        await volumes_of(service).remove(volume)
    await prepared.destroy()
    await volumes_of(service).remove(volume)


async def test_a_sandbox_that_cannot_be_made_keeps_no_volume(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> int:
        raise HttpError(413, "full")

    monkeypatch.setattr(creation, "remaining_space", refuse)
    volume = await volumes_of(service).create(LOCAL_TENANT, "v")
    with pytest.raises(HttpError, match="full"):
        await make_prepared(service, LOCAL_TENANT, BODY, service.make_home())
    assert volume.users == 0


async def test_a_sandbox_that_is_killed_while_it_is_paused_releases_its_volumes_once(tmp_path: Path) -> None:
    """The pause failed and removed it again: a volume that another sandbox had mounted could be removed."""
    registry, is_pausing, is_gone = SandboxRegistry(), asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        is_pausing.set()
        await is_gone.wait()
        raise SandboxDestroyed

    async def destroy() -> None:
        is_gone.set()

    volume = Volume("vol-1", LOCAL_TENANT.id, "v", "secret", str(tmp_path))
    use_volumes([volume, volume])  # of this sandbox and another one
    entry = registry.add(lambda: cast(Any, SimpleNamespace(destroy=destroy)), LOCAL_TENANT, 0.0, {})
    entry.on_close.append(partial(release_volumes, [volume]))
    entry.on_expiry = pause
    await is_pausing.wait()
    await registry.remove(entry)
    await registry.aclose()  # waits for the expiry
    assert volume.users == 1


async def test_a_shutdown_waits_for_a_sandbox_whose_caller_has_left() -> None:
    registry, is_ending, may_end, ended = SandboxRegistry(), asyncio.Event(), asyncio.Event(), list[bool]()

    async def destroy() -> None:
        is_ending.set()
        await may_end.wait()
        ended.append(True)

    entry = registry.add(lambda: cast(Any, SimpleNamespace(destroy=destroy)), LOCAL_TENANT, 60.0, {})
    removing = asyncio.ensure_future(registry.remove(entry))
    await is_ending.wait()
    removing.cancel()
    await asyncio.wait([removing])
    asyncio.get_running_loop().call_later(0.1, may_end.set)
    await registry.aclose()
    assert removing.cancelled() and ended == [True]


async def test_a_sandbox_that_is_killed_at_the_end_of_its_pause_gets_no_further_timer() -> None:
    registry, is_pausing, may_end = SandboxRegistry(), asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        is_pausing.set()
        await may_end.wait()

    async def destroy() -> None:
        pass

    entry = registry.add(lambda: cast(Any, SimpleNamespace(destroy=destroy)), LOCAL_TENANT, 0.0, {})
    entry.on_expiry = pause
    await is_pausing.wait()
    await registry.remove(entry)
    may_end.set()
    await registry.aclose()
    assert not registry._timers
