"""Sandboxes that are made from a template."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.core.records import replace
from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.serve.e2b import creation, template_builder
from warmcell.interfaces.serve.e2b.creation import Create
from warmcell.interfaces.serve.e2b.template_records import Build
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))


async def test_a_sandbox_counts_while_its_start_command_gets_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not, for 20 s: with as many requests a token had more cages at a time than sandboxes."""
    is_waiting, may_end = asyncio.Event(), asyncio.Event()
    tenant, service = replace(LOCAL_TENANT, sandboxes=1), SimpleNamespace(sandboxes=SandboxRegistry())

    async def copy(*_: Any) -> None:
        pass

    async def make(*_: Any) -> Any:
        return SimpleNamespace(sandbox=None, destroy=copy)

    async def wait(*_: Any) -> bool:
        is_waiting.set()
        return await may_end.wait()

    monkeypatch.setattr(creation, "copy_template_home", copy)
    monkeypatch.setattr(creation, "make_prepared", make)
    monkeypatch.setattr(creation, "run_start_command", copy)
    monkeypatch.setattr(creation, "is_ready", wait)
    asked: Any = (service, tenant, Create(), Build("build", 0.0, 0.0), IMAGE)
    making = asyncio.ensure_future(creation._make_from_template(*asked))
    await is_waiting.wait()
    with pytest.raises(HttpError, match="quota"):
        await asyncio.wait_for(creation._make_from_template(*asked), 5)
    may_end.set()
    await making
    service.sandboxes.check_room(tenant)


async def test_a_sandbox_counts_while_a_build_tries_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not, for up to five minutes: the token had one cage more than sandboxes."""
    is_waiting, may_end = asyncio.Event(), asyncio.Event()
    tenant, sandboxes = replace(LOCAL_TENANT, sandboxes=1), SandboxRegistry()
    images = SimpleNamespace(store=SimpleNamespace(path="/nowhere"))
    service: Any = SimpleNamespace(sandboxes=sandboxes, images=images, on_close=[], on_revoked=[])

    async def do_nothing(*_: Any, **__: Any) -> None:
        pass

    async def wait(*_: Any) -> bool:
        is_waiting.set()
        return await may_end.wait()

    monkeypatch.setattr(template_builder, "copy_template_home", do_nothing)
    monkeypatch.setattr(
        template_builder, "PreparedSandbox", lambda *_, **__: SimpleNamespace(sandbox=None, destroy=do_nothing)
    )
    monkeypatch.setattr(template_builder, "run_start_command", do_nothing)
    monkeypatch.setattr(template_builder, "is_ready", wait)
    build = Build("build", 0.0, 0.0, start_command="serve")
    trying = asyncio.ensure_future(template_builder.TemplateBuilds(service)._try(tenant, build, IMAGE))
    await is_waiting.wait()
    try:
        with pytest.raises(HttpError, match="quota"):
            sandboxes.check_room(tenant)
    finally:
        may_end.set()
        await trying
    sandboxes.check_room(tenant)


@pytest.mark.attack("S3-27")
async def test_a_start_command_counts_as_a_process_of_its_tenant() -> None:
    """It did not: a token had more programs that go on than `--runs` allows, one for each sandbox."""
    owners: list[Any] = []

    async def start_process(tenant: Any, start: Any) -> Any:
        owners.append(tenant)
        return await start()

    async def spawn(argv: list[str], **_: Any) -> Any:
        return argv

    service: Any = SimpleNamespace(start_process=start_process)
    sandbox: Any = SimpleNamespace(spawn=spawn)
    build = Build("build", 0.0, 0.0, start_command="serve")
    started: Any = await template_builder.run_start_command(service, LOCAL_TENANT, sandbox, build)
    assert started[-1] == "serve" and owners == [LOCAL_TENANT]
    assert await template_builder.run_start_command(service, LOCAL_TENANT, sandbox, Build("build", 0.0, 0.0)) is None
    assert len(owners) == 1
