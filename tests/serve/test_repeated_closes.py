"""Closes that are repeated, concurrent or cancelled: a `Sandbox` here and one on a server behave the same."""

from __future__ import annotations

import asyncio

import pytest
from tests.serve.conftest import Either, Server

from warmcell import AsyncClient, BackendUnavailable, SandboxDestroyed


async def test_a_session_closes_for_every_caller(sandbox: Either) -> None:
    session = await sandbox.session("command")
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(session.close(), session.close())
    assert session.is_closed
    other = await sandbox.session("command")
    await sandbox.destroy()
    await other.close()
    await other.close()


async def test_a_sandbox_closes_for_every_caller(sandbox: Either) -> None:
    closing = asyncio.ensure_future(sandbox.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(sandbox.destroy(), sandbox.destroy(), sandbox.aclose())
    await sandbox.destroy()
    with pytest.raises(SandboxDestroyed):
        await sandbox.sh("true")


async def test_a_sandbox_whose_close_was_cancelled_is_gone_after_the_second(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        sandbox = await client.sandbox()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await sandbox.destroy()
        await asyncio.gather(sandbox.destroy(), sandbox.destroy())
        listed = await client._connection.request("GET", "/v1/sandboxes")
        assert sandbox.id not in str(listed)


async def test_a_closed_client_is_a_typed_error(server: Server) -> None:
    unused = AsyncClient(server.url)
    await asyncio.gather(unused.aclose(), unused.aclose())
    with pytest.raises(BackendUnavailable, match="closed"):
        await unused.sandbox()
    client = AsyncClient(server.url)
    sandbox = await client.sandbox()
    session = await sandbox.session("command")
    watch = await sandbox.watch().__aenter__()
    await asyncio.gather(client.aclose(), client.aclose())
    for close in (session.close, sandbox.destroy, sandbox.destroy):
        with pytest.raises(BackendUnavailable, match="closed"):
            await close()
    await watch.aclose()
    await watch.aclose()
