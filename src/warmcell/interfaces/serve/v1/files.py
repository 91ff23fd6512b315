"""`/v1/sandboxes/{id}/files`, trees, archives, patches and diffs; changes of files as server-sent events."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warmcell.core.errors import InvalidRequest, PathTraversal
from warmcell.interfaces.serve.event_streams import KEEPALIVE, EventStream, format_event, with_keepalives
from warmcell.interfaces.serve.requests import OWNER, AnswerMemory, read_body, read_model
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import Service, get_entry, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import (
    PATH,
    DirectoryBody,
    PatchBody,
    flag_in_query,
    path_in_query,
    query,
    whole_in_query,
)
from warmcell.interfaces.serve.v1.sandbox_state import state_of
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.watches import AsyncWatch
from warmcell.workspace import file_watch
from warmcell.workspace.errors import LimitExceeded, WorkspaceError, WrongKind
from warmcell.workspace.files import MAX_FILE_BYTES, MAX_LIST_ENTRIES

MAX_DEPTH = 32
_PIECE = 256 << 10
#: A guest's bytes must not be shown as a page: its scripts would run in the server's origin.
_DOWNLOAD_HEADERS = {
    "Content-Security-Policy": "sandbox",
    "Content-Disposition": "attachment",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
#: Watches per sandbox: each uses one of the user's inotify instances, of which there are few.
MAX_WATCHES = 4
#: Of those instances one tenant gets an eighth, and all tenants half: the rest is left to guests and other programs.
_TENANT_SHARE, _SERVER_SHARE = 8, 2


async def read_file(request: Request, tenant: Tenant) -> Response:
    """The content of a file."""
    most = whole_in_query(request, "max_bytes", MAX_FILE_BYTES, MAX_FILE_BYTES)
    sandbox = get_entry(request, tenant).sandbox
    return await _download(request, tenant, lambda: sandbox.read_file(_path(request), max_bytes=most))


async def write_file(request: Request, tenant: Tenant) -> None:
    """Writes the body to the path, creating parent directories unless `parents` is false."""
    entry, parents = get_entry(request, tenant), flag_in_query(request, "parents", True)
    data = await read_body(request)
    await entry.sandbox.write_file(_path(request), data, parents=parents)


async def remove_file(request: Request, tenant: Tenant) -> None:
    """Removes a file, or a directory with its content."""
    recursive = flag_in_query(request, "recursive", True)
    await get_entry(request, tenant).sandbox.remove(_path(request), recursive=recursive)


async def list_files(request: Request, tenant: Tenant) -> Response:
    """The entries of a directory, sorted."""
    most = whole_in_query(request, "max_entries", MAX_LIST_ENTRIES, MAX_LIST_ENTRIES)
    found = await get_entry(request, tenant).sandbox.list_dir(path_in_query(request), max_entries=most)
    return json_response([dataclasses.asdict(entry) for entry in found])


async def tree(request: Request, tenant: Tenant) -> Response:
    """Everything below a directory, `depth` levels deep; symbolic links are listed and not followed."""
    depth = whole_in_query(request, "depth", MAX_DEPTH, MAX_DEPTH)
    return json_response(await _below(get_entry(request, tenant).sandbox, path_in_query(request), depth))


async def _below(sandbox: AsyncSandbox, top: str, depth: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    level = [("", await sandbox.list_dir(top))]
    for below in range(1, depth + 1):
        entries = [(prefix + entry.name, entry) for prefix, listed in level for entry in listed]
        found += [dataclasses.asdict(entry) | {"path": path} for path, entry in entries]
        level, count = [], len(found)
        for path in [path for path, entry in entries if entry.is_dir and below < depth]:
            try:
                listed = await sandbox.list_dir(f"{top}/{path}")
            except (WorkspaceError, PathTraversal):
                continue  # removed, or made unreadable by the guest; its name is listed
            count += len(listed)
            if count > MAX_LIST_ENTRIES:  # not after the level: a guest can have millions of names there
                raise LimitExceeded(top, f"has more than {MAX_LIST_ENTRIES} entries", limit=MAX_LIST_ENTRIES)
            level.append((f"{path}/", listed))
    return sorted(found, key=lambda entry: str(entry["path"]))


async def stat(request: Request, tenant: Tenant) -> Response:
    """Information about a file or a directory."""
    return json_response(dataclasses.asdict(await get_entry(request, tenant).sandbox.stat(path_in_query(request))))


async def make_directory(request: Request, tenant: Tenant) -> None:
    """Makes a directory."""
    entry, body = get_entry(request, tenant), await read_model(request, DirectoryBody)
    await entry.sandbox.mkdir(body.path, parents=body.parents)


async def upload(request: Request, tenant: Tenant) -> Response:
    """Writes the body to `path` (`executable` makes it a program), or unpacks a tar or zip archive there (`extract`):
    all of it or nothing."""
    entry, extract = get_entry(request, tenant), flag_in_query(request, "extract")
    data = await read_body(request)
    path = request.query_params.get("path")
    if path is None:
        raise InvalidRequest("is required", field="path")
    if not extract and path in (".", "/work"):
        raise WrongKind(path, "is a directory")
    executable = flag_in_query(request, "executable") if "executable" in request.query_params else None
    uploaded = await entry.sandbox.upload(data, path, extract=extract, executable=executable)
    return json_response(
        {"files": uploaded.files, "total_bytes": uploaded.total_bytes, "skipped": list(uploaded.skipped)}, 201
    )


async def download(request: Request, tenant: Tenant) -> Response:
    """The bytes of a file, or a directory as a tar archive."""
    most = whole_in_query(request, "max_bytes", MAX_FILE_BYTES, MAX_FILE_BYTES)
    sandbox = get_entry(request, tenant).sandbox
    return await _download(request, tenant, lambda: sandbox.download(path_in_query(request), max_bytes=most))


async def patch(request: Request, tenant: Tenant) -> Response:
    """Applies a patch, all of it or nothing, and returns the changes."""
    entry, body = get_entry(request, tenant), await read_model(request, PatchBody)
    return json_response(
        [dataclasses.asdict(change) for change in await entry.sandbox.apply_patch(body.patch, body.path)]
    )


async def read_before(request: Request, tenant: Tenant) -> Response:
    """The content of a file as `diff` compares it; available for small files."""
    sandbox = get_entry(request, tenant).sandbox
    return await _download(request, tenant, lambda: sandbox.read_before(_path(request)))


async def mark(request: Request, tenant: Tenant) -> None:
    """Makes `diff` compare with the present files from now on."""
    await get_entry(request, tenant).sandbox.mark()


async def diff(request: Request, tenant: Tenant) -> Response:
    """Files created, modified and deleted since the sandbox was made, or since the last mark."""
    return json_response([dataclasses.asdict(change) for change in await get_entry(request, tenant).sandbox.diff()])


def _path(request: Request) -> str:
    return str(request.path_params["path"])


class _Download(Response):
    """Sends a file in pieces, and counts its memory until the last one is sent or the client is gone."""

    def __init__(self, memory: AnswerMemory, tenant: Tenant, data: bytes) -> None:
        super().__init__(data, headers=_DOWNLOAD_HEADERS, media_type="application/octet-stream")
        scope = {OWNER: tenant.id}
        memory.take(scope, len(data))
        self._release = weakref.finalize(self, memory.release, scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            data = memoryview(self.body)
            for start in range(0, len(data), _PIECE):
                piece = bytes(data[start : start + _PIECE])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._release()


async def _download(request: Request, tenant: Tenant, read: Callable[[], Awaitable[bytes]]) -> Response:
    memory = get_service(request).state.get(AnswerMemory, AnswerMemory)
    async with memory.reading[tenant.id]:
        return _Download(memory, tenant, await read())


async def watch(request: Request, tenant: Tenant) -> Response:
    """Events of the files in a directory, or with `recursive` of all below it: first `ready`, then `file`."""
    entry, recursive = get_entry(request, tenant), flag_in_query(request, "recursive")
    state = state_of(entry)
    _check_watch_limits(get_service(request), tenant, state.watches)
    state.watches += 1
    try:
        await entry.sandbox.start()  # the directory exists only from here on
        make = partial(entry.sandbox.watch, path_in_query(request), recursive=recursive)
        made = await (await in_thread(make)).__aenter__()  # a tree may be large, and other requests have this loop
    except BaseException:
        state.watches -= 1
        raise

    async def end() -> None:
        state.watches -= 1
        await made.aclose()

    return EventStream(_events(get_service(request), made), end)


def _check_watch_limits(service: Service, tenant: Tenant, of_sandbox: int) -> None:
    """Raises `HttpError` 429 if the sandbox, the tenant or the server has too many watches."""
    watches = [(entry.tenant_id, state_of(entry).watches) for entry in service.sandboxes.all()]
    of_tenant = sum(count for owner, count in watches if owner == tenant.id)
    instances = file_watch.most_instances()
    for holder, used, most in (
        ("the sandbox", of_sandbox, MAX_WATCHES),
        ("this token", of_tenant, instances // _TENANT_SHARE),
        ("the server", sum(count for _, count in watches), instances // (_SERVER_SHARE * service.settings.workers)),
    ):
        if used >= max(1, most):
            raise HttpError(429, f"{holder} already has {most} watches", headers={"Retry-After": "5"})


async def _events(service: Service, made: AsyncWatch) -> AsyncIterator[str]:
    yield format_event("ready", {})
    changes = (change async for change in made)
    async with aclosing(with_keepalives(changes, service.draining)) as items:  # type: ignore[type-var]
        async for item in items:
            yield KEEPALIVE if item is None else format_event("file", {"path": item.path, "kind": item.kind})


def routes() -> list[Any]:
    at, files = "/v1/sandboxes/{id}", "/v1/sandboxes/{id}/files/{path:path}"
    flag = {"type": "boolean"}
    most = query("max_bytes", {"type": "integer", "minimum": 1, "maximum": MAX_FILE_BYTES})
    entries = query("max_entries", {"type": "integer", "minimum": 1, "maximum": MAX_LIST_ENTRIES})
    depth = query("depth", {"type": "integer", "minimum": 1, "maximum": MAX_DEPTH})
    parents, recursive = query("parents", flag), query("recursive", flag)
    to = [PATH | {"required": True}, query("extract", flag), query("executable", flag)]
    return [
        route("GET", f"{at}/files", list_files, "sandbox", answers=("Entries",), parameters=[PATH, entries]),
        route("GET", f"{at}/tree", tree, "sandbox", answers=("Tree",), parameters=[PATH, depth]),
        route("GET", f"{at}/stat", stat, "sandbox", answers=("FileStat",), parameters=[PATH]),
        route("GET", f"{at}/diff", diff, "sandbox", answers=("Changes",)),
        route("GET", f"{at}/before/{{path:path}}", read_before, "sandbox", answers=("bytes",)),
        route("POST", f"{at}/mark", mark, "sandbox", **NO_CONTENT),
        route("GET", f"{at}/download", download, "sandbox", answers=("bytes",), parameters=[PATH, most]),
        route(
            "POST", f"{at}/upload", upload, "sandbox", raw_body=True, parameters=to, answers=("Uploaded",), status=201
        ),
        route("POST", f"{at}/mkdir", make_directory, "sandbox", body=DirectoryBody, **NO_CONTENT),
        route("POST", f"{at}/patch", patch, "sandbox", body=PatchBody, answers=("Changes",)),
        route("GET", files, read_file, "sandbox", answers=("bytes",), parameters=[most]),
        route("PUT", files, write_file, "sandbox", raw_body=True, parameters=[parents], **NO_CONTENT),
        route("DELETE", files, remove_file, "sandbox", parameters=[recursive], **NO_CONTENT),
        route("GET", f"{at}/watch", watch, "sandbox", answers=("events",), parameters=[PATH, recursive]),
    ]
