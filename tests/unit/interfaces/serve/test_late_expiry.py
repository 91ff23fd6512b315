"""Sandboxes whose deadline passes while the event loop stands still."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.helpers import PATIENCE, until_async

from warmcell.interfaces.serve import sandbox_registry
from warmcell.interfaces.serve.sandbox_registry import SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT


class Sandbox:
    async def destroy(self) -> None: ...


async def pass_deadline(registry: SandboxRegistry) -> sandbox_registry.SandboxEntry:
    """A sandbox whose timer is 0.3 s late. The requests that arrived meanwhile are handled next."""
    entry = registry.add(Sandbox, LOCAL_TENANT, 0.01, {})  # type: ignore[arg-type]
    time.sleep(0.3)
    for _ in range(20):
        await asyncio.sleep(0)
    return entry


async def test_a_request_in_time_prolongs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was removed before the request was read, and the client got a 404."""
    monkeypatch.setattr(sandbox_registry, "LATE_PAUSE_SECONDS", PATIENCE)
    registry = SandboxRegistry()
    entry = await pass_deadline(registry)
    registry.prolong(entry, 60, LOCAL_TENANT)
    assert registry.all() == [entry]
    await registry.aclose()


async def test_it_is_removed_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_registry, "LATE_PAUSE_SECONDS", 0.01)
    registry = SandboxRegistry()
    await pass_deadline(registry)
    await until_async(lambda: not registry.all() and not registry._timers)


async def test_it_is_prolonged_beside_its_expiry() -> None:
    """The client was told that it was prolonged, and it was removed."""
    registry = SandboxRegistry()
    entry = registry.add(Sandbox, LOCAL_TENANT, 60, {})  # type: ignore[arg-type]
    registry._start_expiry(entry)
    registry.prolong(entry, 50, LOCAL_TENANT)
    await asyncio.gather(*registry._expiring)
    assert registry.all() == [entry]
    await registry.aclose()
