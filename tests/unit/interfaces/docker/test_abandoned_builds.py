"""Clients that stop reading the output of their build, and then hang up."""

from __future__ import annotations

import asyncio
import io
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until_async

from warmcell.interfaces.docker import build_routes
from warmcell.interfaces.docker.build_routes import BuildRoutes
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.messages import Request

PRINT = "while True: print('x' * 1000, flush=True)"


class Context:
    async def chunks(self) -> AsyncIterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("Dockerfile"), io.BytesIO())
        yield buffer.getvalue()


async def test_a_build_whose_output_is_not_read_ends_with_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More output waits than the server reads ahead, so it has not seen the end of the output."""
    create, started = asyncio.create_subprocess_exec, list[Any]()

    async def note(*command: Any, **options: Any) -> Any:
        started.append(await create(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", note)
    monkeypatch.setattr(build_routes, "command_of_module", lambda _: [sys.executable, "-c", PRINT])
    engine = Engine(DockerSettings(str(tmp_path / "socket"), store=str(tmp_path / "images")))
    messages: Any = (await BuildRoutes(engine).build(Request("POST", "/build", {}, {}, Context()))).chunks
    assert await anext(messages) == b"x" * 1000 + b"\r\n"
    await until_async(lambda: started[0].stdout._paused)
    async with asyncio.timeout(30):
        await messages.aclose()
    assert started[0].returncode == -9 and engine.image_work._slots.is_idle
    assert list(Path(engine.directory.path).glob("build-*")) == []
    await engine.close()
