"""NeMo Gym: our provider behind its public sandbox API."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from urllib.request import ProxyHandler, build_opener

import pytest
from tests.helpers import PATIENCE, require, until

if find_spec("nemo_gym") is None:  # not installed by scripts/test-seats
    pytest.skip("nemo_gym is not installed", allow_module_level=True)


async def test_its_sandbox(tmp_path: Path) -> None:
    from nemo_gym.sandbox.api import AsyncSandbox
    from nemo_gym.sandbox.providers.base import SandboxSpec, SandboxStatus

    spec = SandboxSpec(
        workdir="/tmp/place", env={"WORD": "hi"}, files={"/tmp/place/note": "text\n"}, resources={"memory_mib": 512}
    )
    async with AsyncSandbox({"warmcell": {}}, spec) as sandbox:  # found by its entry point
        await sandbox.start()
        result = await sandbox.exec("echo $WORD $MORE; cat note; echo err >&2; exit 3", env={"MORE": "x"})
        assert (result.stdout, result.stderr, result.return_code) == ("hi x\ntext\n", "err\n", 3)
        await sandbox.exec("sleep 100000 & echo $! > /tmp/pid")
        assert (await sandbox.exec("kill -0 $(cat /tmp/pid)", timeout_s=60)).return_code == 0
        for seconds in (1, 5, 25, 125):  # a starved host may not have printed by then
            late = await sandbox.exec("echo so far; sleep 100000", timeout_s=seconds)
            if late.stdout:
                break
        assert (late.stdout, late.error_type) == ("so far\n", "timeout")
        (tmp_path / "up").write_bytes(b"\0\xff")
        await sandbox.upload(tmp_path / "up", "/tmp/new/up")
        await sandbox.download("/tmp/new/up", tmp_path / "down/up")
        assert (tmp_path / "down/up").read_bytes() == b"\0\xff"
        assert await sandbox.status() == SandboxStatus.RUNNING
        with pytest.raises(ValueError, match="not supported"):
            await sandbox.exec("true", user="agent")
    assert await sandbox.status() == SandboxStatus.STOPPED


async def test_a_server_in_the_sandbox() -> None:
    from nemo_gym.sandbox.api import AsyncSandbox
    from nemo_gym.sandbox.providers import base

    require(hasattr(base, "SandboxEndpoint"), "this NeMo Gym has no endpoints")
    async with AsyncSandbox({"warmcell": {}}, base.SandboxSpec(ports=[8000], workdir="/tmp/www")) as sandbox:
        await sandbox.start()
        await sandbox.exec("echo hello > page; python3 -m http.server -b 127.0.0.1 8000 > /dev/null 2>&1 &")
        found = await sandbox.endpoint(8000)

        def is_served() -> bool:
            try:
                with build_opener(ProxyHandler({})).open(
                    f"{found.endpoint.rstrip('/')}/page", timeout=PATIENCE
                ) as answer:
                    return bool(answer.read() == b"hello\n")
            except OSError:  # it is starting
                return False

        await asyncio.to_thread(until, is_served)


async def test_what_is_refused() -> None:
    from nemo_gym.sandbox.providers.base import SandboxCreateError, SandboxSpec
    from nemo_gym.sandbox.providers.registry import create_provider

    provider = create_provider({"warmcell": None})
    for spec in (SandboxSpec(resources={"gpu": 1}), SandboxSpec(image="no-such-image:1"), SandboxSpec(ttl_s=5)):
        with pytest.raises(SandboxCreateError):
            await provider.create(spec)
    await provider.aclose()


async def test_a_sandbox_without_its_directory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_gym.sandbox.providers.base import SandboxCreateError, SandboxSpec

    from warmcell.interfaces.seats.cage_commands import CageCommands
    from warmcell.interfaces.seats.nemo_gym import WarmcellProvider

    provider, began, destroyed = WarmcellProvider(), Event(), list[CageCommands]()
    destroy = CageCommands.destroy

    async def count(commands: CageCommands) -> None:
        destroyed.append(commands)
        await destroy(commands)

    monkeypatch.setattr(CageCommands, "destroy", count)
    with pytest.raises(SandboxCreateError, match="/proc/none"):
        await provider.create(SandboxSpec(workdir="/proc/none"))
    assert len(destroyed) == 1

    async def never(*_: object, **__: object) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CageCommands, "run", never)
    creating = asyncio.ensure_future(provider.create(SandboxSpec()))
    await asyncio.to_thread(began.wait, PATIENCE)
    creating.cancel()
    await asyncio.wait([creating])
    assert creating.cancelled() and len(destroyed) == 2 and not provider._running
