"""`stats` of a container whose guest forges the figures, or that ends meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.core.timestamps import rfc3339
from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker import container_routes
from warmcell.interfaces.docker.container import Container
from warmcell.interfaces.docker.container_routes import ContainerRoutes
from warmcell.interfaces.docker.container_spec import read_spec
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.messages import DockerError, Request

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))


async def ask(
    place: Path, request: Any, *, is_ending: bool = False, stream: str = "0", one_shot: str = "1"
) -> dict[str, Any]:
    """The answer to `stats` of a running container whose cage answers with `request`."""
    engine = Engine(DockerSettings(str(place / "socket"), store=str(place / "images")))
    cage: Any = SimpleNamespace(request=request, close=None)
    container = Container("name", read_spec({"Image": "image:1"}, IMAGE), IMAGE, cage, lambda *_: None)
    container.state, container.is_ending = "running", is_ending
    engine.containers[container.id] = container
    query, nothing = {"stream": [stream], "one-shot": [one_shot]}, None
    asked = Request("GET", "/x", query, {}, nothing, names={"id": container.id})  # type: ignore[arg-type]
    try:
        answer = await ContainerRoutes(engine).stats(asked)
    finally:
        engine.containers.clear()
        await engine.close()
    found: dict[str, Any] = json.loads(answer.body, parse_constant=pytest.fail)
    return found


@pytest.mark.parametrize("forged", ["NaN", "Infinity", "-1", "1e300", "1" + "0" * 400, '"x"', "null", "[]"])
async def test_forged_figures_are_left_out(tmp_path: Path, forged: str) -> None:
    """NaN was an internal error, and the end of the stream."""

    async def request(op: str) -> Any:
        return dict.fromkeys(("seconds", "memory", "count"), json.loads(forged))

    found = await ask(tmp_path, request)
    assert found["cpu_stats"]["cpu_usage"]["total_usage"] == 0
    assert found["memory_stats"]["usage"] == found["pids_stats"]["current"] == 0


async def test_figures_are_whole_numbers(tmp_path: Path) -> None:
    async def request(op: str) -> Any:
        return {"seconds": 1.5, "memory": 4096.0, "count": 2}

    found = await ask(tmp_path, request)
    assert found["cpu_stats"]["cpu_usage"]["total_usage"] == 1_500_000_000
    assert [type(found["memory_stats"]["usage"]), found["pids_stats"]["current"]] == [int, 2]


def cpu_of(document: dict[str, Any]) -> list[int]:
    return [document[name]["cpu_usage"]["total_usage"] for name in ("precpu_stats", "cpu_stats")]


async def test_without_a_stream_an_interval_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`precpu_stats` was empty: `docker stats --no-stream` divided the CPU time by the uptime of this host."""
    monkeypatch.setattr(container_routes, "_STATS_SECONDS", 0)
    read: list[float] = []

    async def request(op: str) -> Any:
        read.append(0.5 + len(read))
        return {"seconds": read[-1], "memory": 4096, "count": 2}

    found = await ask(tmp_path, request, one_shot="0")
    assert cpu_of(found) == [500_000_000, 1_500_000_000]
    assert 0 < found["precpu_stats"]["system_cpu_usage"] <= found["cpu_stats"]["system_cpu_usage"]
    assert rfc3339(0) < found["preread"] <= found["read"]
    read.clear()
    assert cpu_of(await ask(tmp_path, request)) == [0, 500_000_000], "of one reading, there is no interval"
    with pytest.raises(DockerError) as refused:
        await ask(tmp_path, request, stream="1")
    assert refused.value.status == 400


async def test_a_container_that_ends_meanwhile_uses_nothing(tmp_path: Path) -> None:
    async def request(op: str) -> Any:
        raise DockerError(409, "the helper was killed")

    assert (await ask(tmp_path, request, is_ending=True))["memory_stats"]["usage"] == 0
    with pytest.raises(DockerError):
        await ask(tmp_path, request)
