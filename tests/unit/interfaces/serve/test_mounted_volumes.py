"""A volume counts as mounted from the moment a new sandbox has found it, before its client has the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from warmcell.interfaces.serve.e2b import creation
from warmcell.interfaces.serve.e2b.creation import Create, make_prepared
from warmcell.interfaces.serve.e2b.volumes import volumes_of
from warmcell.interfaces.serve.responses import HttpError
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
