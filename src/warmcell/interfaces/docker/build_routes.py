"""`POST /build`: the classic builder. The context may be hostile, so it is unpacked like a layer of an image."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import stat
from collections.abc import AsyncIterator, Mapping
from typing import Any

from warmcell.core.errors import ImageInvalid
from warmcell.core.light import closing_fd, on_error
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.references import parse_reference
from warmcell.images.unpack import Unpacker, WhiteoutsUnsupported
from warmcell.interfaces.docker.engine import RouteGroup
from warmcell.interfaces.docker.image_routes import save_body
from warmcell.interfaces.docker.image_work import ImageJob
from warmcell.interfaces.docker.messages import DockerError, Request, Response, Route, json_response
from warmcell.lifetime.host_program import command_of_module
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import SandboxPolicy
from warmcell.workspace import openat2
from warmcell.workspace.remove import remove_directory

_MAX_CONTEXT = 4 << 30
_CONTEXT_LIMITS = ImageLimits(unpacked_bytes=8 << 30, entries=200_000, ratio_from_bytes=64 << 20)
_MAX_LINE = 1 << 20
#: How long a client may read nothing: its build waits for it, and others wait for the build.
_STALL_SECONDS = 300.0
#: Parameters that are refused unless they are empty, and why.
_REFUSED = {
    "remote": "send the context as a tar",
    "squash": "layers are not squashed",
    "labels": "use LABEL in the Dockerfile",
    "extrahosts": "/etc/hosts is the cage's",
    "outputs": "export the image",
    "memory": "limits of builds are the operator's",
    "cpuquota": "limits of builds are the operator's",
    "cpusetcpus": "limits of builds are the operator's",
}


class BuildRoutes(RouteGroup):
    def routes(self) -> list[Route]:
        return [Route("POST", "/build", self.build, is_streamed=True), Route("POST", "/build/prune", self.prune)]

    async def prune(self, request: Request) -> Response:
        return json_response({"CachesDeleted": None, "SpaceReclaimed": await in_thread(self._engine.store.prune)})

    async def build(self, request: Request) -> Response:
        options = self._read_options(request)
        job = await self._engine.image_work.start()
        place = os.path.join(self._engine.directory.path, f"build-{secrets.token_hex(8)}")
        async with on_error(lambda: _end(job, place)):
            archive, context = os.path.join(place, "archive"), os.path.join(place, "context")
            os.mkdir(place, 0o700)
            os.mkdir(context, 0o700)
            await save_body(request, archive, _MAX_CONTEXT, job)
            await in_thread(lambda: unpack_context(archive, context, job), on_cancel=job.abandon)
            check_dockerfile(context, options["dockerfile"])
        messages = self._messages({**options, "context": context}, place, job)
        await anext(messages)  # from now on closing it removes the files, even if the client has disconnected
        headers = {"content-type": "application/json"}
        return Response(200, headers=headers, chunks=messages, stall_seconds=_STALL_SECONDS)

    def _read_options(self, request: Request) -> dict[str, Any]:
        if request.text("version") == "2":
            raise DockerError(501, "BuildKit is not supported: use the classic builder (DOCKER_BUILDKIT=0)")
        for name, reason in _REFUSED.items():
            if request.text(name) not in ("", "0", "false", "{}", "[]", "null"):
                raise DockerError(400, f"{name} is not supported: {reason}")
        names = [parse_reference(name).name for name in request.query.get("t", []) if name]
        arguments = request.json_parameter("buildargs").items()
        return {
            "store": self._engine.store.path,
            "dockerfile": request.text("dockerfile") or "Dockerfile",
            "names": names or [f"built/{secrets.token_hex(6)}:latest"],
            "build_args": {str(name): str(value) for name, value in arguments if value is not None},
            "target": request.text("target"),
            "policy": self._policy(request.text("networkmode")),
            "uses_cache": not request.flag("nocache"),
        }

    def _policy(self, network: str) -> str:
        """The policy of a build's commands, as JSON: the network of containers, and the operator's limits."""
        if network not in ("", "default", "bridge", "none"):
            raise DockerError(400, f"networkmode {network[:40]!r} is not supported: use bridge or none")
        ceiling, is_online = self._engine.settings.ceiling, network != "none"
        policy = SandboxPolicy(
            allow_network=ceiling.allow_network and is_online,
            network_rules=ceiling.network_rules if is_online else (),
            allow_process_spawn=True,
            limits=ceiling.limits,
        )
        return policy.to_json()

    async def _messages(self, options: Mapping[str, Any], place: str, job: ImageJob) -> AsyncIterator[bytes]:
        """Yield an empty message, then what the build's process writes. A disconnect ends the build."""
        process = None
        try:
            yield b""
            process = await asyncio.create_subprocess_exec(
                *command_of_module("warmcell.interfaces.docker.build_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MAX_LINE,
            )
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(options).encode() + b"\n")  # open until the end: it notices if we are killed
            while line := await process.stdout.readline():
                yield line.rstrip(b"\n") + b"\r\n"
            if await process.wait() != 0:
                message = f"the build's process ended with {process.returncode}"
                yield json.dumps({"errorDetail": {"message": message}, "error": message}).encode() + b"\r\n"
        finally:
            try:
                if process is not None and process.returncode is None:
                    process.kill()
                    await process.communicate()  # `wait` alone never returns while more output waits than is buffered
                    await in_thread(self._engine.store.sweep)
            finally:
                await _end(job, place)


async def _end(job: ImageJob, place: str) -> None:
    try:
        await in_thread(lambda: remove_directory(place))
    finally:
        job.end()


class ContextBudget(Budget):
    """Counts what is unpacked against the job's disk."""

    def __init__(self, job: ImageJob) -> None:
        super().__init__(_CONTEXT_LIMITS)
        self._job = job

    def count_bytes(self, size: int) -> None:
        super().count_bytes(size)
        self._job.charge(size)


def unpack_context(archive: str, directory: str, job: ImageJob) -> None:
    """Unpack the context. Blocking. Bombs, links that lead out and devices are handled as in layers of images."""
    budget = ContextBudget(job)
    with open(archive, "rb") as stream:
        reader = LayerReader(decompress(stream), budget, os.fstat(stream.fileno()).st_size)
        try:
            Unpacker(directory, budget).unpack(reader)
        except WhiteoutsUnsupported:
            raise DockerError(400, "the context has a file whose name begins with '.wh.'") from None
        except ImageInvalid as error:
            raise DockerError(400, f"the build context was refused: {error.message}") from None


def check_dockerfile(context: str, dockerfile: str) -> None:
    """Refuse a Dockerfile outside the context: a path or a link that leads out would show files of the host."""
    if "\0" in dockerfile:
        raise DockerError(400, "dockerfile: contains a null byte")
    is_inside, is_file = ".." not in dockerfile.split("/"), False
    try:
        with closing_fd(os.open(context, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
            if is_inside:  # links are followed by the kernel: `os.path.realpath` follows any number of them
                with closing_fd(openat2.open_within(root, dockerfile, os.O_PATH)) as found:
                    is_file = stat.S_ISREG(os.fstat(found).st_mode)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        is_inside = error.errno != errno.EXDEV
    if not is_inside:
        raise DockerError(400, f"dockerfile parse error: {dockerfile[:200]!r} is not in the build context")
    if not is_file:
        raise DockerError(400, f"Cannot locate specified Dockerfile: {dockerfile[:200]}")
