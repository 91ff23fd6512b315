"""Serves the Docker Engine API on a private Unix socket. Router: finds the handler by method and path."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.docker.build_routes import BuildRoutes
from warmcell.interfaces.docker.connection import Connection, LargeBodies
from warmcell.interfaces.docker.container_routes import ContainerRoutes
from warmcell.interfaces.docker.engine import DockerSettings, Engine
from warmcell.interfaces.docker.exec_routes import ExecRoutes
from warmcell.interfaces.docker.image_routes import ImageRoutes
from warmcell.interfaces.docker.messages import NEWEST, OLDEST, Answer, DockerError, Request, Response, Route
from warmcell.interfaces.docker.system_routes import SystemRoutes
from warmcell.interfaces.serve.http_protocol import ConnectionShares
from warmcell.lifetime.threads import cancel_and_wait

_VERSION = re.compile(r"/v(\d{1,3})\.(\d{1,3})(/.*)")
#: Requests that are refused: method and path, and the reason, which clients show. The first match counts.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"POST /containers/[^/]+/(pause|unpause)", "pause and unpause are not supported: stop the container and start it"),
    (r"POST /images/.+/push", "push is not supported: export the image and push it with another tool"),
    (r"POST /auth", "login is not supported: credentials are sent with each pull"),
    (r"POST /commit", "commit is not supported: build an image from a Dockerfile, or copy the files out"),
    (r"POST /containers/[^/]+/update", "update is not supported: limits are set when a container is created"),
    (r"GET /containers/[^/]+/export", "export is not supported: copy the files out with GET /containers/ID/archive"),
    (r"GET /containers/[^/]+/changes", "changes (docker diff) are not supported: no list of changed files is kept"),
    (r"GET /containers/[^/]+/attach/ws", "attach over WebSocket is not supported: use POST /containers/ID/attach"),
    (
        r"\w+ /containers/[^/]+/checkpoints.*",
        "checkpoints are not supported: a container cannot be saved while it runs",
    ),
    (r"POST /networks/[^/]+/(dis)?connect", "networks cannot be changed: --docker-network says what containers reach"),
    (r"DELETE /networks/[^/]+", "networks cannot be removed: bridge and none always exist"),
    (r"PUT /volumes/[^/]+", "cluster volumes are not supported: a volume is a private directory"),
    (r"GET /images/search", "search is not supported: name the image, with its registry"),
    (r"POST /(session|grpc)", "BuildKit sessions are not supported: use the classic builder (DOCKER_BUILDKIT=0)"),
    (r"\w+ /distribution/.*", "manifests of registries cannot be queried: pull the image and inspect it"),
    (
        r"\w+ /(swarm|nodes|services|tasks|secrets|configs|plugins)(/.*)?",
        "swarm and plugins are not supported: this is Warmcell, which has containers, images and volumes only",
    ),
)
_MAX_CONNECTIONS = 512
_BACKLOG = 128
#: The longest path of a Unix socket.
_MAX_PATH = 107
#: How long requests in progress may take when the server ends.
_LAST_SECONDS = 5.0


def serve(settings: DockerSettings, on_listening: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT. `on_listening` is called with the URL for DOCKER_HOST when clients can connect."""
    listening = listen(settings.socket)
    try:
        asyncio.run(_serve(settings, listening, on_listening))
    finally:
        listening.close()
        with suppress(InvalidRequest):  # the next server listens there already
            _remove_stale(settings.socket)


def listen(path: str) -> socket.socket:
    """Make a socket that only this user can use. Replaces one that a killed server left."""
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
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._shares = ConnectionShares(_MAX_CONNECTIONS, "")
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
        """End all connections, after sending responses about containers that have just ended."""
        if self._connections:
            await asyncio.wait(set(self._connections.values()), timeout=_LAST_SECONDS)
        await cancel_and_wait(*self._connections.values())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, router = asyncio.current_task(), self._router
        assert task is not None
        connection = Connection(reader, writer, router.is_streamed, router.answer, self._large_bodies, self._shares)
        self._connections[connection] = task
        try:
            self._make_room(connection)
            await connection.serve()
        finally:
            self._forget(connection)

    def _make_room(self, new: Connection) -> None:
        """If there are too many, close the longest idle connection, or the new one if none is idle."""
        oldest = self._shares.add(new, "", len(self._connections))
        if len(self._connections) > _MAX_CONNECTIONS:
            closed = oldest if isinstance(oldest, Connection) else new
            # Not `close`: a request that arrives at this moment would be carried out, and its answer lost.
            self._connections[closed].cancel()
            self._forget(closed)

    def _forget(self, connection: Connection) -> None:
        self._shares.remove(connection)
        self._connections.pop(connection, None)


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, route.pattern) for route in routes]

    def is_streamed(self, request: Request) -> bool:
        try:
            route, _ = self._find(request)
        except DockerError:
            return True  # its body is not read
        return route.is_streamed

    async def answer(self, request: Request) -> Answer:
        route, names = self._find(request)
        request.names = names
        return await route.handler(request) or Response(204)

    def _find(self, request: Request) -> tuple[Route, dict[str, str]]:
        request.version, path = _split_version(request.path)
        methods = []
        for route, pattern in self._routes:
            found = pattern.fullmatch(path)
            if found and request.method == route.method:
                return route, found.groupdict()
            if found:
                methods.append(route.method)
        for refused, reason in _REASONS:
            if re.fullmatch(refused, f"{request.method} {path}"):
                raise DockerError(501, reason)
        if methods:
            raise DockerError(405, f"method not allowed: {path[:200]} has {', '.join(methods)}")
        # Not 404: clients take that for a missing container or image.
        raise DockerError(501, f"Warmcell does not implement {request.method[:20]} {path[:200]} of Docker's API")


def _split_version(path: str) -> tuple[tuple[int, int], str]:
    """The version of the API, by default the newest, and the path below it."""
    found = _VERSION.fullmatch(path)
    if not found:
        return NEWEST, path
    version = int(found[1]), int(found[2])
    if version > NEWEST or version < OLDEST:
        text, side = f"{version[0]}.{version[1]}", "new" if version > NEWEST else "old"
        limit = "Maximum" if version > NEWEST else "Minimum"
        nearest = NEWEST if version > NEWEST else OLDEST
        message = f"client version {text} is too {side}. {limit} supported API version is {nearest[0]}.{nearest[1]}"
        raise DockerError(400, message)
    return version, found[3]
