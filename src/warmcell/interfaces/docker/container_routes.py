"""Containers: create, start, stop, list, logs, attach and the rest of `/containers`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.images.manifests import own_architecture
from warmcell.interfaces.docker.container import Container
from warmcell.interfaces.docker.container_spec import parse_signal, read_spec
from warmcell.interfaces.docker.container_views import TOP_TITLES, inspect_container, list_entry, stats_document
from warmcell.interfaces.docker.engine import RouteGroup
from warmcell.interfaces.docker.messages import (
    DockerError,
    Hijack,
    RawStream,
    Request,
    Response,
    Route,
    has_labels,
    is_match,
    json_line,
    json_response,
)
from warmcell.interfaces.docker.output_log import LogQuery, content_type, copy_streams, encode
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.sandbox.interface import PtySize
from warmcell.sandbox.local.process import LocalProcess

_STATS_SECONDS = 1.0
#: Of the figures that a guest may forge: nanoseconds and bytes of `stats` have 64 bits.
_LARGEST = {"seconds": 1 << 33, "memory": 1 << 62, "count": 1 << 31}
_FILTERS = ("id", "name", "label", "status", "ancestor", "exited", "network", "volume")


class ContainerRoutes(RouteGroup):
    def routes(self) -> list[Route]:
        one = "/containers/{id}"
        return [
            Route("POST", "/containers/create", self.create),
            Route("GET", "/containers/json", self.list),
            Route("POST", "/containers/prune", self.prune),
            Route("GET", f"{one}/json", self.inspect),
            Route("DELETE", one, self.remove),
            Route("POST", f"{one}/start", self.start),
            Route("POST", f"{one}/stop", self.stop),
            Route("POST", f"{one}/restart", self.restart),
            Route("POST", f"{one}/kill", self.kill),
            Route("POST", f"{one}/rename", self.rename),
            Route("POST", f"{one}/resize", self.resize),
            Route("POST", f"{one}/wait", self.wait),
            Route("GET", f"{one}/logs", self.logs),
            Route("POST", f"{one}/attach", self.attach),
            Route("GET", f"{one}/stats", self.stats),
            Route("GET", f"{one}/top", self.top),
        ]

    def _find(self, request: Request) -> Container:
        return self._engine.find(request.names["id"])

    # ---- create, start, stop, remove ----

    async def create(self, request: Request) -> Response:
        _check_platform(request.text("platform"))
        document = request.json()
        reference = document.get("Image")
        if not isinstance(reference, str) or not reference:
            raise DockerError(400, "no image specified")
        engine = self._engine
        image = await engine.find_image(reference)
        spec = read_spec(document, image, ignores_capabilities=engine.settings.ignores_capabilities)
        container = await engine.complete(engine.create(request.text("name").removeprefix("/"), spec, image))
        return json_response({"Id": container.id, "Warnings": list(spec.warnings)}, 201)

    async def start(self, request: Request) -> Response:
        has_started = await self._engine.complete(self._engine.start(self._find(request)))
        return Response(204 if has_started else 304)

    async def stop(self, request: Request) -> Response:
        has_stopped = await self._engine.complete(self._stop(self._find(request), request))
        return Response(204 if has_stopped else 304)

    async def _stop(self, container: Container, request: Request) -> bool:
        seconds = request.number("t", container.spec.stop_timeout)
        number = parse_signal(request.text("signal")) if request.text("signal") else container.spec.stop_signal
        return await container.stop(number, None if seconds < 0 else seconds)

    async def restart(self, request: Request) -> None:
        container = self._find(request)

        async def restart() -> None:
            container.restarts += 1
            try:
                await self._stop(container, request)
            finally:
                container.restarts -= 1
            await self._engine.start(container)

        await self._engine.complete(restart())

    async def kill(self, request: Request) -> None:
        number = parse_signal(request.text("signal") or "SIGKILL")
        await self._engine.complete(self._find(request).signal(number))

    async def rename(self, request: Request) -> None:
        self._engine.rename(self._find(request), request.text("name").removeprefix("/"))

    async def resize(self, request: Request) -> Response:
        await self._find(request).resize(read_size(request))
        return Response(200)

    async def remove(self, request: Request) -> None:
        container = self._find(request)
        if container.is_running and not request.flag("force"):
            message = f'cannot remove container "/{container.name}": container is running'
            raise DockerError(409, f"{message}: stop the container before removing or force remove")
        if request.flag("link"):
            raise DockerError(400, "link is not supported: containers have no links")
        await self._engine.complete(self._engine.remove(container))

    async def prune(self, request: Request) -> Response:
        filters = request.filters("label")
        engine = self._engine
        removed: list[str] = []

        async def remove(container: Container) -> None:
            """Others may have started or removed it while those before it were removed."""
            if container.is_idle and has_labels(container.spec.labels, filters.get("label", [])):
                await engine.remove(container)
                removed.append(container.id)

        for container in tuple(engine.containers.values()):
            await engine.complete(remove(container))
        return json_response({"ContainersDeleted": removed or None, "SpaceReclaimed": 0})

    async def wait(self, request: Request) -> Response:
        """Wait for a state. The head is sent at once: `docker run` waits for it before it starts the container."""
        condition = request.text("condition") or "not-running"
        if condition not in ("not-running", "next-exit", "removed"):
            raise DockerError(400, f"invalid condition: {condition[:40]!r}")
        container = self._find(request)
        before = container.finished, container.failed_starts

        async def result() -> AsyncIterator[bytes]:
            while not _is_over(container, condition, before):
                await container.wait_for_change()
            yield json_line({"StatusCode": container.exit_code})

        return Response(200, headers={"content-type": "application/json"}, chunks=result())

    # ---- inspect, list, logs, attach ----

    async def inspect(self, request: Request) -> Response:
        return json_response(inspect_container(self._find(request)))

    async def list(self, request: Request) -> Response:
        filters = request.filters(*_FILTERS)
        wants_all = request.flag("all") or "status" in filters or "exited" in filters
        found = sorted(self._engine.containers.values(), key=lambda one: -one.created)
        shown = [one for one in found if (wants_all or one.is_running) and _is_listed(one, filters)]
        most = request.number("limit", -1)
        return json_response([list_entry(one) for one in (shown if most <= 0 else shown[:most])])

    async def logs(self, request: Request) -> Response:
        container, query = self._find(request), _log_query(request)
        has_tty = container.spec.has_tty

        async def lines() -> AsyncIterator[bytes]:
            async for stream, data in container.log.read(query):
                yield encode(stream, data, has_tty)

        return Response(200, headers={"content-type": content_type(has_tty)}, chunks=lines())

    async def attach(self, request: Request) -> Hijack:
        """Attach to the main program. Before its start too, so that the client sees all output."""
        container, spec = self._find(request), self._find(request).spec
        has_past = request.flag("logs") or not container.is_running
        is_followed, is_input = request.flag("stream"), request.flag("stdin") and spec.has_stdin
        past = container.log.read(LogQuery(stdout=request.flag("stdout"), stderr=request.flag("stderr")))

        async def run(raw: RawStream) -> None:
            if not is_followed:
                async for stream, data in past:
                    await raw.write(encode(stream, data, spec.has_tty))
                return
            process = await _start_or_hangup(container, raw)
            if process is not None:
                # What it prints from now on; with `has_past` also what is kept of earlier output.
                output = process.output_since({} if has_past else process.totals())
                wanted = (event async for _, event in output if request.flag(event.stream))
                inputs = {"is_input": is_input, "closes_input": spec.closes_stdin}
                await copy_streams(raw, wanted, process, has_tty=spec.has_tty, **inputs)

        return Hijack(run, content_type(spec.has_tty))

    async def stats(self, request: Request) -> Response:
        """Clients compute the CPU use from two readings: a single document has both, unless `one-shot` is set."""
        container, is_single = self._find(request), request.flag("one-shot")
        if not request.flag("stream", True):
            earlier = None
            if container.is_running and not is_single:
                earlier = await _read_usage(container)
                await asyncio.sleep(_STATS_SECONDS)
            return json_response(stats_document(container, await _read_usage(container), earlier))
        if is_single:
            raise DockerError(400, "cannot have stream=true and one-shot=true")

        async def rows() -> AsyncIterator[bytes]:
            before = None
            while not container.is_removed:
                usage = await _read_usage(container)
                yield json_line(stats_document(container, usage, before))
                before = usage
                await asyncio.sleep(_STATS_SECONDS)

        return Response(200, headers={"content-type": "application/json"}, chunks=rows())

    async def top(self, request: Request) -> Response:
        container = self._find(request)
        container.running_main()
        if request.text("ps_args") not in ("", "-ef"):
            raise DockerError(400, "ps_args is not supported: use exec to run the image's own ps")
        answer = await container.cage.request("processes")
        return json_response({"Titles": list(TOP_TITLES), "Processes": answer.get("rows", [])})


def _check_platform(text: str) -> None:
    names = {"", "linux", f"linux/{own_architecture()}", f"linux/{os.uname().machine}"}
    if text not in names:
        raise DockerError(404, f"image platform {text[:80]!r} does not match this host (linux/{own_architecture()})")


def _is_over(container: Container, condition: str, before: tuple[float, int]) -> bool:
    if container.is_running:  # while it is being removed, too: its exit code is not known yet
        return False
    if container.is_removed or condition == "not-running":
        return True
    return condition == "next-exit" and before != (container.finished, container.failed_starts)


def _is_listed(container: Container, filters: Mapping[str, list[str]]) -> bool:
    spec, image = container.spec, container.image
    names = (image.name, spec.image_name, image.digest, image.digest.removeprefix("sha256:"))
    # Docker's filter is a regular expression; clients use its anchors, and know names with and without a slash.
    full_names = (f"^{container.name}$", f"^/{container.name}$")
    return (
        is_match(filters, "id", container.id.startswith)
        and is_match(filters, "name", lambda name: any(name in full for full in full_names))
        and has_labels(spec.labels, filters.get("label", []))
        and is_match(filters, "status", lambda status: status == container.state)
        and is_match(filters, "exited", lambda code: container.state == "exited" and code == str(container.exit_code))
        and is_match(filters, "ancestor", lambda name: any(one == name or one == f"{name}:latest" for one in names))
        and is_match(filters, "network", lambda name: name == spec.network)
        and is_match(filters, "volume", lambda name: any(name in (m.source, m.target) for m in spec.mounts))
    )


def _log_query(request: Request) -> LogQuery:
    if not request.flag("stdout") and not request.flag("stderr"):
        raise DockerError(400, "Bad parameters: you must choose at least one stream")
    tail = request.text("tail")
    return LogQuery(
        stdout=request.flag("stdout"),
        stderr=request.flag("stderr"),
        tail=int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 10 else -1,
        since=request.moment("since"),
        until=request.moment("until"),
        has_timestamps=request.flag("timestamps"),
        is_followed=request.flag("follow"),
    )


async def _start_or_hangup(container: Container, raw: RawStream) -> LocalProcess | None:
    """Wait until the main program runs, and return it; None if the client or the container is gone before."""
    starting = asyncio.ensure_future(container.wait_for_start())
    leaving = asyncio.ensure_future(raw.wait_for_hangup())
    try:
        await asyncio.wait({starting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        await cancel_and_wait(starting, leaving)


async def _read_usage(container: Container) -> dict[str, Any]:
    """The cage's usage. The guest can forge the answer, so only numbers are kept that clients can read."""
    nothing = {"read": time.time()}
    if not container.is_running:
        return nothing
    try:
        answer = await container.cage.request("processes")
    except (DockerError, SandboxError):
        if not container.is_ending:
            raise
        return nothing  # the helper was killed, with all other processes
    found = {name: _amount(answer.get(name), most) for name, most in _LARGEST.items()}
    cpus = os.cpu_count() or 1
    return {**found, "read": time.time(), "system": time.monotonic() * cpus, "cpus": cpus}


def _amount(value: object, most: int) -> float:
    """The number; 0 for anything else, also NaN, and for what is negative or larger than `most`."""
    return value if isinstance(value, int | float) and 0 <= value <= most else 0


def read_size(request: Request) -> PtySize:
    columns, rows = request.number("w", 80), request.number("h", 24)
    if not (0 < columns < 1 << 16 and 0 < rows < 1 << 16):
        raise DockerError(400, "h and w must be from 1 to 65535")
    return PtySize(columns, rows)
