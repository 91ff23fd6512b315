"""What a client of the Docker socket makes the server keep: descriptions, labels, events and bodies are bounded."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker import connection, engine
from warmcell.interfaces.docker.build_routes import BuildRoutes
from warmcell.interfaces.docker.connection import Connection, LargeBodies
from warmcell.interfaces.docker.container import Container, ExecProcess, read_exec_spec
from warmcell.interfaces.docker.container_spec import ContainerSpec, read_spec
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.image_routes import ImageRoutes
from warmcell.interfaces.docker.messages import DockerError, Request, Response, labels_field, memory_of
from warmcell.interfaces.docker.output_log import EventLog
from warmcell.interfaces.serve.http_protocol import ConnectionShares

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))
MIB = 1 << 20


def spec(**fields: Any) -> ContainerSpec:
    return read_spec({"Image": "image:1", **fields}, IMAGE)


@pytest.mark.attack("S3-18")
@pytest.mark.parametrize(
    "fields",
    [
        {"Cmd": ["x" * (5 * MIB)]},
        {"Cmd": ["x"] * MIB},
        {"Env": [f"A{number}=1" for number in range(100_000)]},
        {"OnBuild": [[]] * MIB},
        {"Labels": {"name": "x" * (300 << 10)}},
        {"Labels": {str(number): "" for number in range(5000)}},
    ],
    ids=["long", "many", "variables", "unread field", "long label", "many labels"],
)
def test_a_large_description_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DockerError, match="of memory") as refusal:
        spec(**fields)
    assert refusal.value.status == 400


def test_descriptions_as_clients_send_them_are_accepted() -> None:
    """The longest argument that the kernel passes, and the labels of development containers."""
    made = spec(Cmd=["sh", "-c", "#" * (128 << 10)], Env=["A=" + "x" * 100_000], Labels={"metadata": "x" * 100_000})
    assert 300_000 < made.size < MIB
    assert labels_field({"Labels": {"a": "b"}}) == {"a": "b"}
    with pytest.raises(DockerError, match="not strings"):
        labels_field({"Labels": {"a": ["b"]}})
    assert memory_of({"a": ["b", {"c": 1.5, "d": None}]}) > memory_of({"a": ["b"]}) > 0


@pytest.mark.attack("S3-18")
def test_the_configuration_of_the_image_counts_as_a_whole() -> None:
    """Its author is a stranger, and each container keeps a copy."""
    labels = {str(number): "x" * 1000 for number in range(10_000)}
    image = Image("large:1", "sha256:" + "1" * 64, 0, None, ImageConfig(cmd=("true",), labels=labels))
    assert read_spec({"Image": "large:1"}, image).size > 10 * MIB


@pytest.mark.attack("S3-18")
def test_events_are_bounded_by_their_size() -> None:
    async def follow() -> list[str]:
        log = EventLog()
        for number in range(400):
            log.add("container", "create", str(number), {"label": "x" * 100_000})
        log.close()
        return [event["id"] async for event in log.follow(since=1.0, until=0.0)]

    kept = asyncio.run(follow())
    assert kept == [str(number) for number in range(400 - len(kept), 400)]
    assert 30 < len(kept) < 42


@pytest.mark.attack("S3-18")
def test_exec_processes_are_bounded_by_the_size_of_their_descriptions() -> None:
    container = Container("name", spec(), IMAGE, None, lambda *_: None)  # type: ignore[arg-type]
    made = [ExecProcess(read_exec_spec({"Cmd": ["x" * MIB]}, "/", "root")) for _ in range(20)]
    for process in made[:7]:
        container.add_exec(process)
    with pytest.raises(DockerError, match="8 MiB"):
        container.add_exec(made[7])
    made[2].is_started = made[4].is_started = True  # and ended, since they have no process
    container.add_exec(made[7])
    assert list(container.execs) == [process.id for process in made[:8] if process is not made[2]]


@pytest.fixture
def docker_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose containers have no cage."""

    class NoBackend:
        def __init__(self, **_: object) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(engine, "ProcessBackend", NoBackend)
    return Engine(DockerSettings(str(tmp_path / "socket"), containers=3, store=str(tmp_path / "images")))


async def create_many(engine: Engine, count: int, **fields: Any) -> list[Container]:
    work = [engine.create(f"name{number}", spec(**fields), IMAGE) for number in range(count)]
    results = await asyncio.gather(*work, return_exceptions=True)
    assert all(isinstance(result, Container | DockerError) for result in results), results
    return [result for result in results if isinstance(result, Container)]


@pytest.mark.attack("S3-20")
def test_requests_at_the_same_time_do_not_exceed_the_number_of_containers(docker_engine: Engine) -> None:
    async def create() -> None:
        made = await create_many(docker_engine, 20)
        assert len(made) == len(docker_engine.containers) == 3
        await docker_engine.remove(made[0])
        assert len(await create_many(docker_engine, 20)) == 1
        await docker_engine.close()

    asyncio.run(create())


@pytest.mark.attack("S3-18")
def test_descriptions_of_all_containers_are_bounded(docker_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_DESCRIPTION_BYTES", 3 * MIB)

    async def create() -> None:
        for _ in range(3):
            made = await create_many(docker_engine, 3, Cmd=["x" * MIB])
            assert len(made) == 2
            for container in made:
                await docker_engine.remove(container)
        await docker_engine.close()

    asyncio.run(create())


class Requests:
    """The requests of one client, and what it is sent."""

    def __init__(self, data: bytes) -> None:
        self.reader, self.sent = asyncio.StreamReader(), bytearray()
        self.reader.feed_data(data)

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None: ...

    def close(self) -> None: ...


def connect(client: Requests, answer: Callable[[Request], Awaitable[Response]], bodies: LargeBodies) -> Connection:
    writer: Any = client
    return Connection(client.reader, writer, lambda _: False, answer, bodies, ConnectionShares(8, ""))


def post(size: int) -> bytes:
    return f"POST /x HTTP/1.1\r\nHost: d\r\nContent-Length: {size}\r\n\r\n".encode()


@pytest.mark.attack("S3-18")
def test_large_bodies_of_all_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MAX_LARGE_BODIES", MIB)

    async def answer(request: Request) -> Response:
        return Response(200, str(len(request.body)).encode())

    async def serve() -> None:
        bodies = LargeBodies()

        def start(size: int, sent: int) -> tuple[Requests, asyncio.Task[None]]:
            client = Requests(post(size) + bytes(sent))
            return client, asyncio.ensure_future(connect(client, answer, bodies).serve())

        slow, serving_slow = start(900_000, 800_000)
        while bodies.total != 800_000:
            await asyncio.sleep(0)
        refused, serving_refused = start(500_000, 500_000)
        small, serving_small = start(1000, 1000)
        for client in (refused, small):
            client.reader.feed_eof()
        await asyncio.gather(serving_refused, serving_small)
        assert refused.sent.startswith(b"HTTP/1.1 503 ") and small.sent.endswith(b"\r\n\r\n1000")
        slow.reader.feed_data(bytes(100_000))
        slow.reader.feed_eof()
        await serving_slow
        assert slow.sent.endswith(b"\r\n\r\n900000") and bodies.total == 0

    asyncio.run(serve())


def test_an_export_that_nobody_reads_leaves_no_file(docker_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that hangs up before the head of the response: the body is never begun."""

    def export(name: str, path: str, _: str) -> None:
        Path(path).write_bytes(b"archive")

    async def save() -> None:
        monkeypatch.setattr(docker_engine, "find_image", lambda _: asyncio.sleep(0, IMAGE))
        monkeypatch.setattr(docker_engine.store, "export", export)
        request = Request("GET", "/images/image/get", {}, {}, None, names={"name": "image:1"})  # type: ignore[arg-type]
        response = await ImageRoutes(docker_engine).save(request)
        assert [path for path in Path(docker_engine.directory.path).iterdir() if path.is_file()] == []
        assert response.chunks is not None and [chunk async for chunk in response.chunks] == [b"archive"]
        await docker_engine.close()

    asyncio.run(save())


class TarBody:
    """The body of a build: a context with one Dockerfile."""

    async def chunks(self) -> AsyncIterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("Dockerfile"), io.BytesIO())
        yield buffer.getvalue()


def test_a_build_whose_client_has_gone_leaves_no_files(docker_engine: Engine) -> None:
    async def build() -> None:
        request = Request("POST", "/build", {}, {}, TarBody())
        response = await BuildRoutes(docker_engine).build(request)
        place = Path(docker_engine.directory.path)
        assert len(list(place.glob("build-*"))) == 1

        class Gone(Requests):
            def write(self, data: bytes) -> None:
                raise ConnectionResetError

        async def answer(_: Request) -> Response:
            return response

        client = Gone(post(0))
        client.reader.feed_eof()
        await connect(client, answer, LargeBodies()).serve()
        assert list(place.glob("build-*")) == []
        await docker_engine.close()

    asyncio.run(build())
