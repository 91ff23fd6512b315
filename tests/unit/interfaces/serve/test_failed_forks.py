"""E2B's forks of which a later one fails, or whose client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from tests.helpers import PATIENCE

from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.serve.e2b import control, snapshots
from warmcell.interfaces.serve.e2b.creation import Create
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry, SandboxNotFound, SandboxRegistry, TypedState
from warmcell.interfaces.serve.service import LOCAL_TENANT


class Leaving:
    """A client that leaves when `stay` is called, which waits to be cancelled."""

    def __init__(self) -> None:
        self._left, self.was_cancelled = asyncio.Event(), False
        self.request = Request({"type": "http"}, self._receive)

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def stay(self, *_: object) -> object:
        self._left.set()
        try:
            return await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


async def fork(
    monkeypatch: pytest.MonkeyPatch,
    *made: object,
    client: Leaving | None = None,
    remove: Callable[[object], Awaitable[None]] | None = None,
) -> Any:
    """The answer to a request for as many forks; each is made, or fails with its error, or its client leaves."""
    service = SimpleNamespace(sandboxes=SimpleNamespace(reserve=lambda tenant: nullcontext(), remove=remove))
    entry = SimpleNamespace(id="1", metadata={}, sandbox=SimpleNamespace(work_dir="/"))
    homes, request = iter(made), (client or Leaving()).request

    async def read_body(request: object) -> bytes:
        return json.dumps({"count": len(made)}).encode()

    async def copy_sandbox(*_: object) -> object:
        home = next(homes)
        if isinstance(home, Exception):
            raise home
        return await home() if callable(home) else home

    async def pass_on(*values: object) -> object:
        return values[3]

    stand_ins: dict[str, Any] = {"read_body": read_body, "copy_sandbox": copy_sandbox, "_handle": lambda handle: handle}
    stand_ins |= {"make_prepared": pass_on, "register": pass_on, "get_service": lambda request: service}
    stand_ins["_entry"] = lambda request, tenant: entry
    stand_ins["_box"] = lambda entry: SimpleNamespace(asked=Create(), image=None)
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(control, name, stand_in)
    return json.loads(bytes((await control.fork(request, LOCAL_TENANT)).body))


async def test_a_fork_that_fails_does_not_hide_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ran until their timeout and counted against the quota, and nobody had their ids."""
    first, failed, last = await fork(monkeypatch, "one", BackendUnavailable("the host's disk is full"), "three")
    assert (first, last) == ({"sandbox": "one"}, {"sandbox": "three"}) and failed["error"]["code"] == 503


async def test_a_first_fork_that_fails_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable):
        await fork(monkeypatch, BackendUnavailable("the host's disk is full"), "two")


async def test_no_fork_is_left_of_a_client_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others were made too: all counted until their timeout, and no client had their ids."""
    client, removed = Leaving(), list[object]()

    async def remove(entry: object) -> None:
        removed.append(entry)

    with pytest.raises(ClientDisconnected):
        await fork(monkeypatch, "one", "two", client.stay, "four", client=client, remove=remove)
    assert client.was_cancelled and removed == ["one", "two"]


async def test_the_snapshot_of_a_client_that_leaves_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted for as long as the server lasts."""
    client = Leaving()
    entry = SimpleNamespace(id="1", sandbox=SimpleNamespace(work_dir="/"))

    async def read_body(request: object) -> bytes:
        return b""

    stand_ins: dict[str, Any] = {"read_body": read_body, "get_service": lambda request: None}
    stand_ins |= {"_entry": lambda request, tenant: entry, "_box": lambda entry: SimpleNamespace(image=None)}
    stand_ins["snapshots_of"] = lambda service: SimpleNamespace(take=client.stay)
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(control, name, stand_in)
    with pytest.raises(ClientDisconnected):
        await control.take_snapshot(client.request, LOCAL_TENANT)
    assert client.was_cancelled


class Copies:
    """Copies of homes, during which `remove` is called, and what a service has for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sandboxes, self.snapshots, self.state = SandboxRegistry(), TenantQuota(), TypedState()
        self.on_close, self.on_revoked = list[object](), list[object]()
        self.saved, self.closed = None, 0
        self.remove: Callable[[], Awaitable[None]] = self.destroy
        self.work_dir = "/"
        monkeypatch.setattr(snapshots, "copy_home", self._copy)

    def add_sandbox(self) -> SandboxEntry:
        return self.sandboxes.add(lambda: cast(Any, self), LOCAL_TENANT, 60.0, {})

    async def destroy(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    async def _copy(self, *_: object) -> object:
        await self.remove()
        return self


async def test_nothing_is_made_of_half_of_the_files_of_a_removed_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy passes over what is missing: a sandbox that expired meanwhile gave a snapshot with some of its files."""
    copies = Copies(monkeypatch)
    service = cast(Any, copies)
    taken = await snapshots.snapshots_of(service).take(LOCAL_TENANT, copies.add_sandbox().id, "/", "whole")
    assert snapshots.snapshots_of(service).of(LOCAL_TENANT) == [taken] and copies.closed == 0
    assert await snapshots.copy_sandbox(service, copies.add_sandbox(), LOCAL_TENANT) is service
    for number in (1, 2):
        source = copies.add_sandbox()
        copies.remove = partial(copies.sandboxes.remove, source)
        with pytest.raises(SandboxNotFound, match="while its files were copied"):
            if number == 1:
                await snapshots.copy_sandbox(service, source, LOCAL_TENANT)
            else:
                await snapshots.snapshots_of(service).take(LOCAL_TENANT, source.id, "/", "half")
        assert copies.closed == number
    assert snapshots.snapshots_of(service).of(LOCAL_TENANT) == [taken]
    assert copies.snapshots.count(LOCAL_TENANT.id) == 1
    await copies.sandboxes.aclose()


async def test_no_sandbox_gets_half_of_the_files_of_a_removed_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch)
    service = cast(Any, copies)
    all_of_them = snapshots.snapshots_of(service)
    taken = await all_of_them.take(LOCAL_TENANT, copies.add_sandbox().id, "/", None)
    assert await snapshots.copy_snapshot(service, taken, LOCAL_TENANT) is service
    copies.remove = partial(all_of_them.remove, taken)
    with pytest.raises(HttpError, match="removed meanwhile"):
        await snapshots.copy_snapshot(service, taken, LOCAL_TENANT)
    assert copies.closed == 2  # the snapshot and the copy
    await copies.sandboxes.aclose()
