"""`wait` while its container is being removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker.container import Container
from warmcell.interfaces.docker.container_routes import ContainerRoutes
from warmcell.interfaces.docker.container_spec import read_spec
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.messages import Request

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))


@pytest.mark.parametrize("condition", ["not-running", "next-exit", "removed"])
async def test_a_wait_during_a_removal_reports_how_the_program_ended(tmp_path: Path, condition: str) -> None:
    engine = Engine(DockerSettings(str(tmp_path / "socket"), store=str(tmp_path / "images")))
    nothing: Any = None
    container = Container("name", read_spec({"Image": "image:1"}, IMAGE), IMAGE, nothing, lambda *_: None)
    engine.containers[container.id] = container
    container.state, container.is_removed = "running", True  # as `rm -f` leaves it until the program has ended
    query = {"condition": [condition]}
    answer = await ContainerRoutes(engine).wait(Request("POST", "/x", query, {}, nothing, names={"id": container.id}))
    assert answer.chunks is not None
    waiting = asyncio.ensure_future(anext(aiter(answer.chunks)))
    await asyncio.sleep(0)
    container.exit_code = 137
    container._set_state("exited")
    assert json.loads(await waiting) == {"StatusCode": 137}
    await engine.close()
