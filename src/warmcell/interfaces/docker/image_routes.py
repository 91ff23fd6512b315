"""Images: list, inspect, pull, load, import, save, tag, remove. The client reads the progress of a pull as JSON."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import secrets
from base64 import urlsafe_b64decode
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.images import Image
from warmcell.images.model import config_document
from warmcell.images.progress import ImageProgress
from warmcell.images.references import parse_reference
from warmcell.interfaces.docker.engine import RouteGroup
from warmcell.interfaces.docker.image_work import ClientLeft, ImageJob
from warmcell.interfaces.docker.messages import (
    DockerError,
    Request,
    Response,
    Route,
    has_labels,
    is_match,
    json_line,
    json_response,
    refusal_of,
)
from warmcell.lifetime.threads import cancel_and_wait, in_thread

#: The largest archive of an image that is accepted.
_MAX_ARCHIVE = 64 << 30
#: How long an upload may take, and how long a client may read nothing of an archive: others may wait for their disk.
_UPLOAD_SECONDS = 3600.0
_CHUNK = 1 << 20
_LOCAL_REGISTRIES = ("localhost", "127.0.0.1", "[::1]")
_FILTERS = ("reference", "dangling", "label", "before", "since")
#: Messages that wait for a slow client; the oldest are dropped.
_MAX_WAITING = 1000


class ImageRoutes(RouteGroup):
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/images/json", self.list),
            Route("POST", "/images/create", self.create, is_streamed=True),
            Route("POST", "/images/load", self.load, is_streamed=True),
            Route("GET", "/images/get", self.save),
            Route("POST", "/images/prune", self.prune),
            Route("GET", "/images/{name*}/json", self.inspect),
            Route("GET", "/images/{name*}/history", self.history),
            Route("GET", "/images/{name*}/get", self.save),
            Route("POST", "/images/{name*}/tag", self.tag),
            Route("DELETE", "/images/{name*}", self.remove),
        ]

    async def list(self, request: Request) -> Response:
        filters = request.filters(*_FILTERS)
        if {"before", "since"} & filters.keys():
            raise DockerError(400, "the filters before and since are not supported")
        if any(value in ("true", "1") for value in filters.get("dangling", [])):
            return json_response([])  # the store shows images that have a name
        images: dict[str, list[Image]] = {}
        for image in await in_thread(self._engine.store.list):
            if _is_listed(image, filters):
                images.setdefault(image.digest, []).append(image)
        counts = [len(self._engine.users_of(same[0])) for same in images.values()]
        return json_response([_entry(same, count) for same, count in zip(images.values(), counts, strict=True)])

    async def inspect(self, request: Request) -> Response:
        image = await self._engine.find_image(request.names["name"])
        names = list(await in_thread(partial(self._engine.store.names_of, image.digest)))
        return json_response(inspect_image(image, names))

    async def history(self, request: Request) -> Response:
        image = await self._engine.find_image(request.names["name"])
        row = {"Id": image.digest, "Created": _seconds(image), "CreatedBy": "", "Size": image.size}
        return json_response([{**row, "Tags": [image.name], "Comment": "the layers of this image"}])

    async def tag(self, request: Request) -> Response:
        image = await self._engine.find_image(request.names["name"])
        name = f"{request.text('repo')}:{request.text('tag') or 'latest'}"
        await in_thread(lambda: self._engine.store.tag(image.digest, name))
        self._engine.events.add("image", "tag", image.digest, {"name": name})
        return Response(201)

    async def remove(self, request: Request) -> Response:
        """Remove a name, or by id all names of the image, which needs `force` if there are several."""
        reference = request.names["name"]
        image = await self._engine.find_image(reference)
        names = list(await in_thread(partial(self._engine.store.names_of, image.digest)))
        is_name = image.name in names and not image.digest.removeprefix("sha256:").startswith(
            reference.removeprefix("sha256:")
        )
        going = [image.name] if is_name else names
        if len(going) > 1 and not request.flag("force"):
            message = f"conflict: unable to delete {image.digest[7:19]} (must be forced)"
            raise DockerError(409, f"{message} - image is referenced in multiple repositories")
        users = self._engine.users_of(image)
        if users and len(going) == len(names) and not request.flag("force"):
            message = f"conflict: unable to remove repository reference {reference[:200]!r} (must force)"
            raise DockerError(409, f"{message} - container {users[0].id[:12]} is using its referenced image")
        for name in going:
            await in_thread(partial(self._engine.store.remove, name))
            self._engine.events.add("image", "untag", image.digest, {"name": name})
        report = [{"Untagged": name} for name in going]
        return json_response(report + ([{"Deleted": image.digest}] if len(going) == len(names) else []))

    async def prune(self, request: Request) -> Response:
        """Remove what no name and no container needs. Images with a name stay."""
        filters = request.filters("dangling")
        if any(value in ("false", "0") for value in filters.get("dangling", [])):
            raise DockerError(400, "dangling=false is not supported: remove images by name")
        freed = await in_thread(self._engine.store.prune)
        return json_response({"ImagesDeleted": None, "SpaceReclaimed": freed})

    # ---- in and out ----

    async def create(self, request: Request) -> Response:
        if source := request.text("fromSrc"):
            return await self._import(request, source)
        name, tag = request.text("fromImage"), request.text("tag")
        if not name:
            raise DockerError(400, "fromImage is missing")
        reference = parse_reference(_join(name, tag))
        username, password = _credentials(request.headers.get("x-registry-auth", ""))
        plain = reference.registry.rpartition(":")[0] in _LOCAL_REGISTRIES or reference.registry in _LOCAL_REGISTRIES
        progress = PullProgress(await self._engine.image_work.start())
        pull = partial(
            self._engine.store.pull,
            _join(name, tag),
            username=username,
            password=password,
            plain_http=plain,
            on_progress=progress.report,
            check=progress.check,
        )

        def describe(image: Image) -> list[dict[str, Any]]:
            self._engine.events.add("image", "pull", image.name, {"name": image.name})
            status = {"status": f"Digest: {image.digest}"}
            return [status, {"status": f"Status: Downloaded newer image for {image.name}"}]

        return await progress.respond(pull, describe)

    async def _import(self, request: Request, source: str) -> Response:
        if source != "-":
            raise DockerError(400, "fromSrc: only '-' is supported, the body of the request")
        if request.query.get("changes"):
            raise DockerError(400, "changes are not supported: build the image from a Dockerfile")
        name = _join(request.text("repo"), request.text("tag")) if request.text("repo") else None
        image = await self._add(request, name)
        return Response(200, json_line({"status": image.digest}), {"content-type": "application/json"})

    async def load(self, request: Request) -> Response:
        image = await self._add(request, None)
        message = {"stream": f"Loaded image: {image.name}\n"}
        return Response(200, json_line(message), {"content-type": "application/json"})

    async def _add(self, request: Request, name: str | None) -> Image:
        """Add an archive of an image, which is first written to disk as a whole."""
        path = os.path.join(self._engine.directory.path, f"archive-{secrets.token_hex(8)}")
        job = await self._engine.image_work.start()
        try:
            await save_body(request, path, _MAX_ARCHIVE, job)
            work = partial(self._engine.store.import_, path, name, on_progress=job.check)
            image = await in_thread(work, on_cancel=job.abandon)
        finally:
            try:
                await in_thread(lambda: _remove_file(path))
            finally:
                job.end()
        self._engine.events.add("image", "load", image.digest, {"name": image.name})
        return image

    async def save(self, request: Request) -> Response:
        names = [request.names["name"]] if "name" in request.names else request.query.get("names", [])
        names = [name for text in names for name in text.split(",")]
        if len(names) != 1:
            raise DockerError(400, "save one image at a time")
        image = await self._engine.find_image(names[0])
        chunks = self._archive(image, await self._engine.image_work.start(fills_store=False))
        await anext(chunks)  # from now on closing it ends the job, even if the client has disconnected
        headers = {"content-type": "application/x-tar"}
        return Response(200, headers=headers, chunks=chunks, stall_seconds=_UPLOAD_SECONDS)

    async def _archive(self, image: Image, job: ImageJob) -> AsyncIterator[bytes]:
        """Yield an empty piece when the archive is on disk, then the archive. It counts until it was sent."""
        path = os.path.join(self._engine.directory.path, f"save-{secrets.token_hex(8)}.tar")
        try:
            job.charge(image.size)
            try:
                await in_thread(partial(self._engine.store.export, image.name, path, "docker"))
                file = open(path, "rb")  # noqa: SIM115
            finally:  # only the open file keeps it: a client that has disconnected never reads it
                await in_thread(lambda: _remove_file(path))
            with file:
                job.free_slot()  # a client may read it only while another job runs: `docker save | docker load`
                yield b""
                while data := await in_thread(lambda: file.read(_CHUNK)):
                    yield data
        finally:
            job.end()


def _remove_file(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


async def save_body(request: Request, path: str, most: int, job: ImageJob) -> None:
    size = 0
    with open(path, "xb") as file:
        os.fchmod(file.fileno(), 0o600)
        try:
            async with asyncio.timeout(_UPLOAD_SECONDS):
                async for chunk in request.stream.chunks():
                    size += len(chunk)
                    if size > most:
                        raise DockerError(413, f"the body is larger than {most} bytes")
                    job.charge(len(chunk))
                    await in_thread(partial(file.write, chunk))
        except TimeoutError:
            raise DockerError(408, f"the body did not arrive within {_UPLOAD_SECONDS:g} s") from None


def _is_listed(image: Image, filters: dict[str, list[str]]) -> bool:
    repository = image.name.rpartition(":")[0]
    return has_labels(image.config.labels, filters.get("label", [])) and is_match(
        filters, "reference", lambda text: any(fnmatch.fnmatchcase(name, text) for name in (image.name, repository))
    )


def _seconds(image: Image) -> int:
    return int(image.created.timestamp()) if image.created else 0


def _entry(same: list[Image], containers: int) -> dict[str, Any]:
    image = same[0]
    return {
        "Id": image.digest,
        "ParentId": "",
        "RepoTags": [other.name for other in same],
        "RepoDigests": [],
        "Created": _seconds(image),
        "Size": image.size,
        "SharedSize": -1,
        "Labels": image.config.labels or None,
        "Containers": containers,
    }


def inspect_image(image: Image, names: list[str]) -> dict[str, Any]:
    config = config_document(image.config)
    layers = [f"sha256:{os.path.basename(os.path.dirname(path))}" for path in image.layer_paths]
    return {
        "Id": image.digest,
        "RepoTags": names,
        "RepoDigests": [],
        "Parent": "",
        "Comment": "",
        "Created": image.created.isoformat().replace("+00:00", "Z") if image.created else "",
        "Author": "",
        "Architecture": image.architecture,
        "Os": "linux",
        "Size": image.size,
        "VirtualSize": image.size,
        "GraphDriver": {"Name": "overlay2", "Data": None},
        "RootFS": {"Type": "layers", "Layers": layers},
        "Metadata": {"LastTagTime": "0001-01-01T00:00:00Z"},
        "Config": {"Cmd": None, "Entrypoint": None, "Env": [], "Labels": None, **config},
    }


def _join(name: str, tag: str) -> str:
    if not tag:
        return name
    return f"{name}@{tag}" if tag.startswith("sha256:") else f"{name}:{tag}"


def _credentials(header: str) -> tuple[str | None, str | None]:
    """User name and password from `X-Registry-Auth`: JSON in base64."""
    if not header:
        return None, None
    try:
        document = json.loads(urlsafe_b64decode(header.encode() + b"=="))
    except (ValueError, RecursionError):
        raise DockerError(400, "X-Registry-Auth is not JSON in base64") from None
    if not isinstance(document, dict) or not document.get("username"):
        return None, None
    return str(document["username"]), str(document.get("password") or "")


def _pull_message(step: ImageProgress) -> dict[str, Any]:
    status = {"pull": "Downloading", "unpack": "Extracting"}.get(step.step, "Copying")
    name = step.what.removeprefix("sha256:")[:12]
    return {"status": status, "id": name, "progressDetail": {"current": step.done, "total": step.total}}


class PullProgress:
    """Progress of one pull. A failure before the first message has an error status; a later one is in the stream."""

    def __init__(self, job: ImageJob) -> None:
        self._job = job
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._is_abandoned = False

    def check(self) -> None:
        """Raises to end the work if the client disconnected; called in any thread."""
        if self._is_abandoned:
            raise ClientLeft

    def report(self, step: ImageProgress) -> None:
        """Queue a message; called in the working thread. Raises as `check` and `ImageJob.check` do."""
        self._job.check()
        self.check()
        self._waiting.append(_pull_message(step))
        self._loop.call_soon_threadsafe(self._changed.set)

    async def respond(self, pull: Callable[[], Image], describe: Callable[[Image], list[dict[str, Any]]]) -> Response:
        """Start the pull and respond. `describe` makes the messages at its end, which ends the job."""
        working = asyncio.ensure_future(in_thread(pull, on_cancel=self._stop))
        working.add_done_callback(self._job.end)
        working.add_done_callback(lambda _: self._changed.set())
        try:
            await self._changed.wait()
            if working.done() and not self._waiting:
                working.result()
        except SandboxError as error:
            raise refusal_of(error) from None
        except asyncio.CancelledError:
            await self._abandon(working)
            raise
        chunks = self._messages(working, describe)
        await anext(chunks)  # from now on closing it ends the work, even if the client has disconnected
        return Response(200, headers={"content-type": "application/json"}, chunks=chunks)

    def _stop(self) -> None:
        self._is_abandoned = True

    async def _messages(
        self, working: asyncio.Future[Image], describe: Callable[[Image], list[dict[str, Any]]]
    ) -> AsyncIterator[bytes]:
        """Yield an empty message, then what was reported, then the end."""
        try:
            yield b""
            is_over = False
            while not is_over:
                is_over = working.done()
                self._changed.clear()
                while self._waiting:
                    yield json_line(self._waiting.popleft())
                if not is_over and not working.done():
                    await self._changed.wait()
            try:
                last = describe(working.result())
            except SandboxError as error:
                last = [{"errorDetail": {"message": str(error)}, "error": str(error)}]
            for message in last:
                yield json_line(message)
        finally:
            await self._abandon(working)

    async def _abandon(self, working: asyncio.Future[Image]) -> None:
        self._stop()
        await cancel_and_wait(working)
