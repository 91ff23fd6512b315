"""`exec` while its program is being started, and clients that disconnect before they can follow its output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.docker.connection import Connection, LargeBodies
from warmcell.interfaces.docker.container import Container, ExecProcess, read_exec_spec
from warmcell.interfaces.docker.container_spec import read_spec
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.exec_routes import ExecRoutes
from warmcell.interfaces.docker.messages import DockerError, Hijack, RawStream, Request
from warmcell.interfaces.serve.http_protocol import ConnectionShares

IMAGE = Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",)))


class Program:
    """Prints into its pipes until its output is followed."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(is_running=True, exit_code=None, pid=2)
        self.times_followed = 0

    @contextmanager
    def follow(self) -> Iterator[None]:
        self.times_followed += 1
        yield


class Cage:
    """Starts the program when it may."""

    def __init__(self) -> None:
        self.is_starting, self.may_start, self.program = asyncio.Event(), asyncio.Event(), Program()

    async def start(self, *_: Any, **__: Any) -> Any:
        self.is_starting.set()
        await self.may_start.wait()
        return self.program


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    made = Engine(DockerSettings(str(tmp_path / "socket"), store=str(tmp_path / "images")))
    yield made
    made.containers.clear()
    await made.close()


def add_exec(engine: Engine) -> tuple[Any, ExecProcess, Request]:
    """A running container and a request to start a program in it."""
    cage: Any = Cage()
    container = Container("name", read_spec({"Image": "image:1"}, IMAGE), IMAGE, cage, lambda *_: None)
    container.state, container.main = "running", cage
    engine.containers[container.id] = container
    process = ExecProcess(read_exec_spec({"Cmd": ["program"]}, "/", "root"))
    container.add_exec(process)
    stream: Any = None
    return cage, process, Request("POST", "/exec/ID/start", {}, {}, stream, names={"exec": process.id})


async def test_a_program_that_is_being_started_has_not_ended(engine: Engine) -> None:
    cage, process, request = add_exec(engine)
    starting = asyncio.ensure_future(ExecRoutes(engine).start(request))
    await cage.is_starting.wait()
    assert (process.is_running, process.has_ended, process.exit_code) == (True, False, None)
    cage.may_start.set()
    await starting
    assert (process.is_running, process.exit_code, cage.program.times_followed) == (True, None, 0)


async def test_a_program_does_not_start_while_all_others_are_killed(engine: Engine) -> None:
    """The main program has ended: what started now would go on in a container that is shown as exited."""
    cage, process, request = add_exec(engine)
    (container,) = engine.containers.values()
    killing, may_end = asyncio.Event(), asyncio.Event()

    async def kill_all() -> None:
        killing.set()
        await may_end.wait()

    cage.kill_all = kill_all
    cage.may_start.set()
    ending = asyncio.ensure_future(container._end())
    await killing.wait()
    with pytest.raises(DockerError, match="is not running"):
        await ExecRoutes(engine).start(request)
    may_end.set()
    await ending
    assert not cage.is_starting.is_set() and not process.is_started


async def test_the_output_of_a_program_is_read_without_the_client_that_started_it(engine: Engine) -> None:
    cage, process, request = add_exec(engine)
    starting = asyncio.ensure_future(ExecRoutes(engine).start(request))
    await cage.is_starting.wait()
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    cage.may_start.set()
    while process.process is None:
        await asyncio.sleep(0)
    assert cage.program.times_followed == 1


async def test_a_client_that_is_gone_before_the_head_is_written_is_noticed() -> None:
    gone: list[str] = []

    async def run(raw: RawStream) -> None:
        gone.append("attached")

    async def answer(_: Request) -> Hijack:
        return Hijack(run, "text/plain", lambda: gone.append("abandoned"))

    class Writer:
        def write(self, data: bytes) -> None: ...

        async def drain(self) -> None:
            raise ConnectionResetError

        def close(self) -> None: ...

    reader, writer, shares = asyncio.StreamReader(), Writer(), ConnectionShares(8, "")
    reader.feed_data(b"POST /exec/ID/start HTTP/1.1\r\nHost: d\r\nContent-Length: 0\r\n\r\n")
    connected: Any = writer
    await Connection(reader, connected, lambda _: False, answer, LargeBodies(), shares).serve()
    assert gone == ["abandoned"]
