"""HttpFiles: the methods of `Workspace` for the files of a sandbox on a server, and the bodies of uploads."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.interfaces.client.connection import SandboxEndpoint
from warmcell.interfaces.client.wire import record
from warmcell.lifetime.cancellable import CancellableIterator
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.diff import FsChange
from warmcell.workspace.file_watch import FileEvent
from warmcell.workspace.files import DirEntry, FileStat, check_limit
from warmcell.workspace.mount_points import host_path
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.transfer import Uploaded, download
from warmcell.workspace.walk import TreeLimits, walk
from warmcell.workspace.workspace import AnyPath, as_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UploadBody:
    """Bytes that become `path`, or with `extract` an archive to unpack beneath it."""

    data: bytes
    path: str | None
    extract: bool = False
    #: None keeps the mode of an existing file.
    executable: bool | None = None
    skipped: tuple[str, ...] = ()


def path_text(path: AnyPath | bytes) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidRequest(f"must be a path as text, not {type(path).__name__}", field="path")
    return text


def optional_path_text(path: AnyPath | None) -> str | None:
    return None if path is None else path_text(path)


def read_upload(source: str, path: str | None, extract: bool) -> UploadBody:
    """Read a file as it is, or a directory as a tar without links. Blocks."""
    place = Path(host_path("source", source))
    if place.is_dir():
        if extract:
            raise InvalidRequest("must be an archive, not a directory", field="source")
        return _tar_directory(place, path or ".")
    try:
        data, is_executable = place.read_bytes(), bool(place.stat().st_mode & stat.S_IXUSR)
    except OSError as error:
        raise InvalidRequest(f"cannot read {source!r}: {error.strerror}", field="source") from None
    return UploadBody(data, path if extract or path is not None else place.name, extract, is_executable)


def _tar_directory(place: Path, path: str) -> UploadBody:
    limits = ArchiveLimits()
    with Root(place) as root:
        entries = walk(root, (), TreeLimits(limits.entries, limits.total_bytes))
        skipped = tuple("/".join(map(str, one.parts)) for one in entries if one.kind not in ("file", "directory"))
        return UploadBody(download(root, (), limits.total_bytes, limits.entries), path, True, skipped=skipped)


class HttpFiles:
    """Has each method of `Workspace`, with the same name and arguments; the defaults are those of `Workspace`."""

    def __init__(self, endpoint: SandboxEndpoint) -> None:
        self._endpoint = endpoint

    async def call(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        bound = inspect.signature(method).bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        return cast(T, await getattr(self, method.__name__)(**arguments))

    def watch(self, path: AnyPath, recursive: bool) -> HttpWatch:
        self._endpoint.check_open()
        return HttpWatch(self._endpoint, path_text(path), recursive)

    async def read_file(self, path: AnyPath, max_bytes: int) -> bytes:
        data: bytes = await self._file("GET", path, max_bytes=check_limit("max_bytes", max_bytes))
        return data

    async def read_text(self, path: AnyPath, encoding: str, max_bytes: int) -> str:
        return (await self.read_file(path, max_bytes)).decode(encoding, "replace")

    async def write_file(self, path: AnyPath, data: str | bytes, parents: bool) -> None:
        await self._file("PUT", path, as_bytes("data", data), parents=parents)

    async def remove(self, path: AnyPath, recursive: bool) -> None:
        await self._file("DELETE", path, recursive=recursive)

    async def list_dir(self, path: AnyPath, max_entries: int) -> list[DirEntry]:
        params = {"path": path_text(path), "max_entries": check_limit("max_entries", max_entries)}
        return [record(DirEntry, entry) for entry in await self._endpoint.request("GET", "files", params=params)]

    async def stat(self, path: AnyPath) -> FileStat:
        plain = await self._endpoint.request("GET", "stat", params={"path": path_text(path)})
        return cast(FileStat, record(FileStat, plain))

    async def exists(self, path: AnyPath) -> bool:
        try:
            return bool(await self.stat(path))
        except FileNotFoundError:
            return False

    async def mkdir(self, path: AnyPath, parents: bool) -> None:
        await self._endpoint.request("POST", "mkdir", json={"path": path_text(path), "parents": parents})

    async def upload(
        self, source: bytes | AnyPath, path: AnyPath | None, extract: bool, executable: bool | None, limits: object
    ) -> Uploaded:
        if limits is not None:
            raise InvalidRequest("the server has its own limits", field="limits", hint="leave it out")
        body = await self._upload_body(source, path, extract, executable)
        params = {"extract": str(body.extract).lower(), "path": "." if body.path is None else body.path}
        if not body.extract and body.executable is not None:
            params["executable"] = str(body.executable).lower()
        answer = await self._endpoint.request("POST", "upload", params=params, content=body.data, seconds=600)
        return Uploaded(answer["files"], answer["total_bytes"], (*body.skipped, *answer["skipped"]))

    async def _upload_body(
        self, source: bytes | AnyPath, path: AnyPath | None, extract: bool, executable: bool | None
    ) -> UploadBody:
        if isinstance(source, bytes):
            return UploadBody(source, optional_path_text(path), extract, executable)
        body = await in_thread(lambda: read_upload(path_text(source), optional_path_text(path), extract))
        if not body.extract and path is not None and await self._is_directory(path):
            return replace(body, path=f"{path_text(path)}/{os.path.basename(path_text(source))}")
        return body

    async def _is_directory(self, path: AnyPath) -> bool:
        try:
            return (await self.stat(path)).is_dir
        except FileNotFoundError:
            return False

    async def download(self, path: AnyPath, max_bytes: int) -> bytes:
        params = {"path": path_text(path), "max_bytes": check_limit("max_bytes", max_bytes)}
        data: bytes = await self._endpoint.request("GET", "download", params=params)
        return data

    async def apply_patch(self, patch: str | bytes, path: AnyPath) -> list[FsChange]:
        text = patch.decode("utf-8", "surrogateescape") if isinstance(patch, bytes) else patch
        changes = await self._endpoint.request("POST", "patch", json={"patch": text, "path": path_text(path)})
        return [record(FsChange, change) for change in changes]

    async def diff(self) -> list[FsChange]:
        return [record(FsChange, change) for change in await self._endpoint.request("GET", "diff")]

    async def read_before(self, path: AnyPath) -> bytes:
        data: bytes = await self._endpoint.request("GET", f"before/{_quote(path_text(path))}")
        return data

    async def mark(self) -> None:
        await self._endpoint.request("POST", "mark", seconds=120)

    async def snapshot(self) -> SnapshotId:
        taken = await self._endpoint.request("POST", "snapshots", seconds=120)
        return SnapshotId(taken["id"], tuple(taken["skipped"]))

    async def restore(self, snapshot: str) -> None:
        await self._endpoint.request("POST", "restore", json={"snapshot": str(snapshot)}, seconds=120)

    async def _file(self, method: str, path: AnyPath, data: bytes | None = None, **params: Any) -> Any:
        texts = {name: str(value).lower() for name, value in params.items()}
        return await self._endpoint.request(method, f"files/{_quote(path_text(path))}", params=texts, content=data)


def _quote(path: str) -> str:
    """Quote a path, "." and ".." too: HTTP clients would resolve them, and send the request to another route."""
    steps = (quote(step, safe="") for step in path.split("/"))
    return "/".join(step.replace(".", "%2E") if step in (".", "..") else step for step in steps)


class HttpWatch:
    """A watch for one reader. Starts with `begin` or the first `next`. If either is cancelled, it can be repeated."""

    def __init__(self, endpoint: SandboxEndpoint, path: str, recursive: bool) -> None:
        params = {"path": path, "recursive": str(recursive).lower()}
        self._open = partial(_watch_events, endpoint, params)
        self._events = CancellableIterator(self._open())
        self._is_ready = self._is_closed = False

    async def begin(self) -> None:
        if self._is_ready or self._is_closed:
            return
        try:
            await anext(self._events, None)
        except SandboxError:  # perhaps there were too many watches
            self._events = CancellableIterator(self._open())
            raise
        self._is_ready = True

    async def next(self) -> FileEvent | None:
        await self.begin()
        event = await anext(self._events, None)
        if event is None:
            await self.aclose()
        return event

    async def aclose(self) -> None:
        """Ends a pending `next` with None. May be called twice."""
        self._is_closed = True
        await self._events.aclose()


async def _watch_events(endpoint: SandboxEndpoint, params: Mapping[str, str]) -> AsyncGenerator[FileEvent | None]:
    """None once the server watches, then the events."""
    async with endpoint.events("GET", "watch", params=params) as events:
        async for name, data, _ in events:
            yield None if name == "ready" else record(FileEvent, data)
