"""`prune` while others start containers, and volumes that containers are about to mount."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE

from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker import engine as engine_module
from warmcell.interfaces.docker.container import Container
from warmcell.interfaces.docker.container_routes import ContainerRoutes
from warmcell.interfaces.docker.container_spec import read_spec
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.messages import DockerError, Request
from warmcell.interfaces.docker.server import Router
from warmcell.interfaces.docker.system_routes import SystemRoutes

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))


class Backend:
    """Is made when it may, and has no cage."""

    is_begun, may_end = threading.Event(), threading.Event()

    def __init__(self, **_: object) -> None:
        self.is_begun.set()
        self.may_end.wait(PATIENCE)

    def close(self) -> None: ...


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(Backend, "is_begun", threading.Event())
    monkeypatch.setattr(Backend, "may_end", threading.Event())
    monkeypatch.setattr(engine_module, "ProcessBackend", Backend)
    made = Engine(DockerSettings(str(tmp_path / "socket"), store=str(tmp_path / "images")))
    yield made
    await made.close()


def request(**names: str) -> Request:
    stream: Any = None
    return Request("POST", "/x", {}, {}, stream, names=names)


async def create(engine: Engine, name: str, **host: Any) -> Container:
    return await engine.create(name, read_spec({"Image": "image:1", "HostConfig": host}, IMAGE), IMAGE)


async def test_a_container_that_is_started_meanwhile_is_not_pruned(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Backend.may_end.set()
    first, second = await create(engine, "first"), await create(engine, "second")
    remove = engine.remove

    async def remove_slowly(container: Container) -> None:
        second.state = "running"
        await remove(container)

    monkeypatch.setattr(engine, "remove", remove_slowly)
    answer = await ContainerRoutes(engine).prune(request())
    assert first.id.encode() in answer.body and second.id.encode() not in answer.body
    assert list(engine.containers.values()) == [second]


async def test_a_container_that_is_being_started_is_not_pruned(engine: Engine) -> None:
    Backend.may_end.set()
    container = await create(engine, "name")
    async with container._lock, asyncio.timeout(PATIENCE):  # as in `start`
        await ContainerRoutes(engine).prune(request())
    assert list(engine.containers.values()) == [container]


async def test_a_volume_of_a_container_that_is_being_created_stays(engine: Engine) -> None:
    creating = asyncio.ensure_future(create(engine, "name", Binds=["data:/data"]))
    await asyncio.to_thread(Backend.is_begun.wait, PATIENCE)
    routes = SystemRoutes(engine)
    every = request()
    every.query = {"filters": ['{"all": ["true"]}']}
    await routes.prune_volumes(every)
    with pytest.raises(DockerError, match="in use"):
        await routes.remove_volume(request(name="data"))
    Backend.may_end.set()
    await creating
    assert os.path.isdir(engine.volumes.get("data").path)


async def test_the_name_of_a_volume_is_free_while_its_files_are_removed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, may_end = engine_module.remove_directory, threading.Event()

    def remove_slowly(path: str) -> None:
        may_end.wait(PATIENCE)
        remove(path)

    monkeypatch.setattr(engine_module, "remove_directory", remove_slowly)
    engine.volumes.create("data", {})
    removing = asyncio.ensure_future(SystemRoutes(engine).remove_volume(request(name="data")))
    while "data" in engine.volumes.all:
        await asyncio.sleep(0)
    path = engine.volumes.create("data", {}).path
    may_end.set()
    await removing
    assert os.path.isdir(path)


@pytest.mark.parametrize(
    ("version", "filters", "left"),
    [
        ((1, 47), "", ["named"]),
        ((1, 42), '{"all": ["false"]}', ["named"]),
        ((1, 42), '{"all": ["true"]}', []),
        ((1, 42), '{"all": {"1": true}}', []),
        ((1, 41), "", []),
    ],
)
async def test_volumes_with_a_name_are_pruned_on_request_only(
    engine: Engine, version: tuple[int, int], filters: str, left: list[str]
) -> None:
    engine.volumes.create("", {})
    engine.volumes.create("named", {})
    asked = request()
    asked.version, asked.query = version, {"filters": [filters]}
    await SystemRoutes(engine).prune_volumes(asked)
    assert list(engine.volumes.all) == left


@pytest.mark.parametrize(("path", "version"), [("/v1.41/_ping", (1, 41)), ("/_ping", (1, 47))])
async def test_a_request_has_the_version_of_its_path(engine: Engine, path: str, version: tuple[int, int]) -> None:
    stream: Any = None
    asked = Request("GET", path, {}, {}, stream)
    await Router(SystemRoutes(engine).routes()).answer(asked)
    assert asked.version == version
