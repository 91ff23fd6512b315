"""`restart` of a container that is removed when its main program ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until_async

from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker.container import Container
from warmcell.interfaces.docker.container_routes import ContainerRoutes
from warmcell.interfaces.docker.container_spec import read_spec
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.messages import Request

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))


class Cage:
    async def kill_all(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None: ...


async def test_a_restart_keeps_a_container_with_auto_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, cage = Engine(DockerSettings(str(tmp_path / "socket"), store=str(tmp_path / "images"))), Cage()
    spec = read_spec({"Image": "image:1", "HostConfig": {"AutoRemove": True}}, IMAGE)
    container = Container("name", spec, IMAGE, cage, engine._emit)  # type: ignore[arg-type]
    engine.containers[container.id], engine._names["name"] = container, container.id

    async def stop(number: int, seconds: float | None) -> bool:
        await container._end()
        return True

    async def start() -> bool:
        container.state = "running"
        return True

    monkeypatch.setattr(container, "stop", stop)
    monkeypatch.setattr(container, "start", start)
    container.state = "running"
    stream: Any = None
    await ContainerRoutes(engine).restart(Request("POST", "/x", {}, {}, stream, names={"id": container.id}))
    await asyncio.sleep(0)
    assert container.is_running and not container.is_removed
    await container._end()
    await until_async(lambda: not engine.containers)
    await engine.close()
