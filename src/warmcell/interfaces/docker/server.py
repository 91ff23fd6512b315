"""Serves the Docker Engine API on a private Unix socket until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.docker.build_routes import BuildRoutes
from warmcell.interfaces.docker.connection import Connection, LargeBodies
from warmcell.interfaces.docker.container_routes import ContainerRoutes
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.exec_routes import ExecRoutes
from warmcell.interfaces.docker.image_routes import ImageRoutes
from warmcell.interfaces.docker.routing import Router
from warmcell.interfaces.docker.system_routes import SystemRoutes

_MAX_CONNECTIONS = 512
_BACKLOG = 128
#: The longest path of a Unix socket.
_MAX_PATH = 107
#: How long requests in progress may take when the server ends.
_LAST_SECONDS = 5.0


def serve(settings: DockerSettings, on_listening: Callable[[str], object]) -> None:
    """Blocks. `on_listening` gets the URL for DOCKER_HOST once clients can connect."""
    listening = listen(settings.socket)
    try:
        asyncio.run(_serve(settings, listening, on_listening))
    finally:
        listening.close()
        with suppress(FileNotFoundError):
            os.unlink(settings.socket)


def listen(path: str) -> socket.socket:
    """A socket that only this user can use. One that a killed server left is replaced."""
    if len(os.fsencode(path)) > _MAX_PATH:
        reason = f"{path[:80]!r} has more than {_MAX_PATH} bytes, the most for a Unix socket"
        raise InvalidRequest(reason, field="--docker-socket", hint="name a shorter path")
    _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # so that other users cannot connect, not even for a moment
    try:
        made.bind(path)
    except OSError as error:
        made.close()
        raise InvalidRequest(f"cannot listen at {path!r}: {error.strerror}", field="--docker-socket") from None
    finally:
        os.umask(before)
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


def _remove_stale(path: str) -> None:
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise InvalidRequest(f"{path!r} exists and is not a socket", field="--docker-socket", hint="name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) == 0:
            raise InvalidRequest(f"another server listens at {path!r}", field="--docker-socket", hint="stop it first")
    os.unlink(path)


async def _serve(settings: DockerSettings, listening: socket.socket, on_listening: Callable[[str], object]) -> None:
    ending, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with DockerServer(settings, listening):
        on_listening(f"unix://{os.path.abspath(settings.socket)}")
        await ending.wait()


class DockerServer:
    """An engine and the connections to it. A context manager."""

    def __init__(self, settings: DockerSettings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._connections: set[asyncio.Task[None]] = set()
        self._large_bodies = LargeBodies()

    async def __aenter__(self) -> DockerServer:
        self.engine = engine = Engine(self._settings)
        parts = (SystemRoutes, ImageRoutes, BuildRoutes, ContainerRoutes, ExecRoutes)
        self._router = Router([route for part in parts for route in part(engine).routes()])
        self._server = await asyncio.start_unix_server(self._accept, sock=self._listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        try:
            await self.engine.close()
        finally:
            await self._end_connections()

    async def _end_connections(self) -> None:
        """Responses about containers that have just ended are still sent."""
        if self._connections:
            await asyncio.wait(set(self._connections), timeout=_LAST_SECONDS)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(set(self._connections))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            router = self._router
            await Connection(reader, writer, router.is_streamed, router.answer, self._large_bodies).serve()
        finally:
            self._connections.discard(task)
