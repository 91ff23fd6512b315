"""`exec`: programs in running containers; and files in and out of containers (`archive`)."""

from __future__ import annotations

import asyncio
import json
import posixpath
from base64 import b64encode
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.docker.container import Container, ExecProcess, read_exec_spec
from warmcell.interfaces.docker.container_routes import read_size
from warmcell.interfaces.docker.container_views import inspect_exec
from warmcell.interfaces.docker.engine import RouteGroup
from warmcell.interfaces.docker.messages import (
    Answer,
    DockerError,
    Hijack,
    RawStream,
    Request,
    Response,
    Route,
    json_response,
)
from warmcell.interfaces.docker.output_log import content_type, copy_streams

_MAX_FILE_MODE = 1 << 32


class ExecRoutes(RouteGroup):
    def routes(self) -> list[Route]:
        archive = "/containers/{id}/archive"
        return [
            Route("POST", "/containers/{id}/exec", self.create),
            Route("POST", "/exec/{exec}/start", self.start),
            Route("POST", "/exec/{exec}/resize", self.resize),
            Route("GET", "/exec/{exec}/json", self.inspect),
            Route("HEAD", archive, self.stat),
            Route("GET", archive, self.read_archive),
            Route("PUT", archive, self.write_archive, is_streamed=True),
        ]

    async def create(self, request: Request) -> Response:
        container = self._engine.find(request.names["id"])
        container.running_main()
        spec = container.spec
        process = ExecProcess(read_exec_spec(request.json(), spec.working_dir, spec.user))
        container.add_exec(process)
        container.emit(f"exec_create: {' '.join(process.spec.argv)[:200]}", execID=process.id)
        return json_response({"Id": process.id}, 201)

    async def start(self, request: Request) -> Answer:
        container, process = self._engine.find_exec(request.names["exec"])
        document, spec = request.json(), process.spec
        container.running_main()
        if bool(document.get("Tty")) != spec.has_tty and not document.get("Detach"):
            raise DockerError(400, f"Tty is {not spec.has_tty} here and was {spec.has_tty} when the exec was created")
        try:
            joins_output = self._engine.settings.joins_exec_output
            program = await self._engine.complete(container.start_exec(process, joins_output=joins_output))
        except SandboxError as error:
            raise DockerError(400, f"OCI runtime exec failed: exec failed: {error}") from None
        except asyncio.CancelledError:
            process.abandon()
            raise
        container.emit(f"exec_start: {' '.join(spec.argv)[:200]}", execID=process.id)
        if document.get("Detach"):
            process.discard_output()
            return Response(200)

        async def run(raw: RawStream) -> None:
            await copy_streams(
                raw, program.output(), program, has_tty=spec.has_tty, is_input=spec.has_stdin, closes_input=True
            )

        return Hijack(run, content_type(spec.has_tty), process.abandon)

    async def resize(self, request: Request) -> Response:
        _, process = self._engine.find_exec(request.names["exec"])
        process.size = read_size(request)
        if process.is_running and process.process is not None and process.spec.has_tty:
            await process.process.resize(process.size)
        return Response(200)

    async def inspect(self, request: Request) -> Response:
        return json_response(inspect_exec(*self._engine.find_exec(request.names["exec"])))

    # ---- files ----

    async def stat(self, request: Request) -> Response:
        container, path = self._engine.find(request.names["id"]), _path(request)
        return Response(200, headers=await _stat_header(container, path))

    async def read_archive(self, request: Request) -> Response:
        container, path = self._engine.find(request.names["id"]), _path(request)
        headers = await _stat_header(container, path)
        chunks = container.cage.read_archive(path, _member_name(request.text("path")))
        return Response(200, headers={**headers, "content-type": "application/x-tar"}, chunks=chunks)

    async def write_archive(self, request: Request) -> Response:
        container, path = self._engine.find(request.names["id"]), _path(request)
        keeps_kinds = request.flag("noOverwriteDirNonDir")
        await container.cage.write_archive(path, request.stream.chunks(), keeps_kinds=keeps_kinds)
        return Response(200)


def _path(request: Request) -> str:
    """The path from the container's root. `..` stays below the root, as in a file system."""
    text = request.text("path")
    if not text or "\0" in text:
        raise DockerError(400, "missing parameter: path")
    return posixpath.normpath("/" + text.lstrip("/"))


def _member_name(text: str) -> str:
    """The name of the archive's first member; "." for the content of a directory."""
    if text.endswith("/.") or posixpath.normpath("/" + text.lstrip("/")) == "/":
        return "."
    return posixpath.basename(posixpath.normpath(text))


async def _stat_header(container: Container, path: str) -> dict[str, str]:
    try:
        found = await container.cage.request("stat", path=path)
    except DockerError as error:
        if error.status != 404:
            raise
        message = f"Could not find the file {path[:300]} in container {container.name}"
        raise DockerError(404, message) from None
    name = posixpath.basename(path) or "/"
    document: dict[str, Any] = {"name": name, **_check_stat(found)}
    return {"x-docker-container-path-stat": b64encode(json.dumps(document).encode()).decode()}


def _check_stat(found: dict[str, Any]) -> dict[str, Any]:
    """Check the types of the answer, which the guest can forge."""
    size, mode, moment, target = (found.get(name) for name in ("size", "mode", "mtime", "linkTarget"))
    is_sound = isinstance(size, int) and isinstance(mode, int) and 0 <= mode < _MAX_FILE_MODE
    if not is_sound or not isinstance(moment, int | float) or not isinstance(target, str):
        raise DockerError(500, "unexpected answer from the file service in the container")
    return {"size": size, "mode": mode, "mtime": rfc3339(moment), "linkTarget": target[:4096]}
