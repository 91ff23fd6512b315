"""`/volumes` and `/volumecontent`: make, list and remove volumes; read and write the files in them.

Files are opened beneath the volume without following links, as those of sandboxes are.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import AsyncIterator, Callable
from io import FileIO
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from warmcell.core.errors import PathTraversal
from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.serve.e2b.control import e2b_refusal
from warmcell.interfaces.serve.e2b.volumes import Volume, volumes_of
from warmcell.interfaces.serve.requests import parse_model, read_body
from warmcell.interfaces.serve.responses import HttpError, json_response, parse_whole_number
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.errors import AlreadyExists, FileMissing, LimitExceeded, WorkspaceError, WrongKind
from warmcell.workspace.files import make_dir, write_file
from warmcell.workspace.names import Parts, split_relative
from warmcell.workspace.remove import remove
from warmcell.workspace.root import DIRECTORY_SPACE, Quota, Root, space_for, text_of, translate_os_errors
from warmcell.workspace.walk import kind_of

T = TypeVar("T")
CONTENT = "/volumecontent/"
#: Files belong to the server's user, which is `user` in sandboxes. Owners that a client sets are kept beside the file.
_OWNER = 1000
_OWNER_ATTRIBUTE = "user.warmcell.owner"
_MAX_ID = (1 << 32) - 1
_MAX_LISTED = 10_000
_READ_AHEAD = 256 << 10
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM)


class NewVolume(BaseModel):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=128)]


class Metadata(BaseModel):
    uid: Annotated[int, Field(ge=0, le=_MAX_ID)] | None = None
    gid: Annotated[int, Field(ge=0, le=_MAX_ID)] | None = None
    mode: Annotated[int, Field(ge=0, le=0o7777)] | None = None


async def create(request: Request, tenant: Tenant) -> Response:
    service = get_service(request)
    body = parse_model(await read_body(request), NewVolume)
    made = await volumes_of(service).create(tenant, body.name)
    return json_response(made.plain() | {"token": made.token}, 201)


async def list_volumes(request: Request, tenant: Tenant) -> Response:
    return json_response([volume.plain() for volume in volumes_of(get_service(request)).of(tenant)])


async def describe_volume(request: Request, tenant: Tenant) -> Response:
    found = volumes_of(get_service(request)).find(tenant, request.path_params["id"])
    return json_response(found.plain() | {"token": found.token})


async def destroy(request: Request, tenant: Tenant) -> None:
    volumes = volumes_of(get_service(request))
    await volumes.remove(volumes.find(tenant, request.path_params["id"]))


async def stat_path(request: Request, tenant: Tenant) -> Response:
    return json_response(await _work_on_path(request, _describe))


async def update_path(request: Request, tenant: Tenant) -> Response:
    body = parse_model(await read_body(request), Metadata)

    def update(root: Root, parts: Parts) -> dict[str, Any]:
        _set_metadata(root, parts, body)
        return _describe(root, parts)

    return json_response(await _work_on_path(request, update))


async def remove_path(request: Request, tenant: Tenant) -> None:
    def unlink(root: Root, parts: Parts) -> None:
        if not parts:
            raise FileMissing("/", "is the volume itself")
        if stat.S_ISLNK(root.lstat(parts).st_mode):
            with root.parent(parts) as (fd, name):
                os.unlink(name, dir_fd=fd)
        else:
            remove(root, parts)

    volume = _volume(request)
    async with volume.changing:
        await _work_on_path(request, unlink, lambda _: volume.space.quota)
        volume.space.note_removal()
        volume.mounted_space.note_removal()


async def list_directory(request: Request, tenant: Tenant) -> Response:
    depth = _number(request, "depth", 1) or 1

    def find_entries(root: Root, parts: Parts) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        waiting = [(parts, 1)]
        while waiting:
            here, level = waiting.pop()
            with root.directory(here) as fd:
                names = sorted(os.listdir(fd))
            if len(found) + len(names) > _MAX_LISTED:
                raise LimitExceeded(text_of(parts), f"has more than {_MAX_LISTED} entries", limit=_MAX_LISTED)
            for name in names:
                entry = _describe(root, (*here, name))
                found.append(entry)
                if entry["type"] == "directory" and level < depth:
                    waiting.append(((*here, name), level + 1))
        return found

    return json_response(await _work_on_path(request, find_entries))


async def make_directory(request: Request, tenant: Tenant) -> Response:
    metadata, is_forced = _metadata(request), _is_forced(request)
    volume = _volume(request)

    def make(root: Root, parts: Parts) -> dict[str, Any]:
        if parts or not is_forced:
            make_dir(root, parts, parents=is_forced)
        _set_metadata(root, parts, metadata)
        return _describe(root, parts)

    async with volume.changing:
        prepare = lambda parts: volume.prepare(tenant, DIRECTORY_SPACE * len(parts), len(parts))  # noqa: E731
        return json_response(await _work_on_path(request, make, prepare), 201)


async def read(request: Request, tenant: Tenant) -> Response:
    def open_file(root: Root, parts: Parts) -> tuple[FileIO, bytes]:
        with root.file(parts) as fd:
            file = FileIO(os.dup(fd))
        return file, file.read(_READ_AHEAD)

    file, first = await _work_on_path(request, open_file)
    if len(first) < _READ_AHEAD:
        file.close()
        return Response(first, media_type="application/octet-stream")
    content = _read_on(file, first, max(1, tenant.disk_mb) << 20)
    return StreamingResponse(content, media_type="application/octet-stream")


async def _read_on(file: FileIO, piece: bytes, most: int) -> AsyncIterator[bytes]:
    """Yield the file in pieces: it may be as large as the volume, and many clients may read it."""
    with file:
        while piece and most > 0:
            yield piece[:most]
            most -= len(piece)
            piece = await in_thread(lambda: file.read(_READ_AHEAD))


async def write(request: Request, tenant: Tenant) -> Response:
    metadata, is_forced, volume = _metadata(request), _is_forced(request), _volume(request)
    data = await read_body(request)

    def put(root: Root, parts: Parts) -> dict[str, Any]:
        if not is_forced and root.exists(parts):
            raise AlreadyExists(text_of(parts))
        write_file(root, parts, data, parents=False)
        _set_metadata(root, parts, metadata)
        return _describe(root, parts)

    async with volume.changing:
        prepare = lambda _: volume.prepare(tenant, space_for(len(data)))  # noqa: E731
        return json_response(await _work_on_path(request, put, prepare), 201)


async def _work_on_path(
    request: Request, work: Callable[[Root, Parts], T], prepare: Callable[[Parts], Quota | None] = lambda _: None
) -> T:
    """Carry out `work` on the path of the request, in a thread. Errors about paths become those of the protocol.

    `prepare` gives the quota that the work is charged to.
    """
    volume = _volume(request)
    path = posixpath.normpath("/" + request.query_params.get("path", ""))

    def work_on_path() -> T:
        parts = () if path.strip("/") == "" else split_relative(path.lstrip("/"))
        with translate_os_errors(parts), Root(volume.path, quota=prepare(parts)) as root:
            return work(root, parts)

    try:
        return await in_thread(work_on_path)
    except FileMissing as error:
        raise HttpError(404, str(error)) from None
    except (AlreadyExists, WrongKind) as error:
        raise HttpError(409, str(error)) from None
    except LimitExceeded as error:
        raise HttpError(413, str(error)) from None
    except (PathTraversal, WorkspaceError) as error:
        raise HttpError(400, str(error)) from None


def _describe(root: Root, parts: Parts) -> dict[str, Any]:
    state = root.lstat(parts)
    kind = kind_of(state.st_mode)
    uid, gid = _read_owner(root, parts, kind)
    name = parts[-1] if parts else "/"
    entry = {
        "name": name.encode("utf-8", "replace").decode(),
        "type": kind if kind in ("file", "directory", "symlink") else "unknown",
        "path": "/" + "/".join(parts).encode("utf-8", "replace").decode(),
        "size": state.st_size if kind == "file" else 0,
        "mode": stat.S_IMODE(state.st_mode),
        "uid": uid,
        "gid": gid,
    }
    times = {"atime": state.st_atime_ns, "mtime": state.st_mtime_ns, "ctime": state.st_ctime_ns}
    entry |= {field: rfc3339(at // 10**9, at % 10**9) for field, at in times.items()}
    if kind == "symlink":
        with root.parent(parts) as (fd, last):
            entry["target"] = os.readlink(last, dir_fd=fd).encode("utf-8", "replace").decode()
    return entry


def _read_owner(root: Root, parts: Parts, kind: str) -> tuple[int, int]:
    """The owner that a client has set. A guest can write the attribute too, so invalid values are ignored."""
    if kind not in ("file", "directory"):
        return _OWNER, _OWNER
    try:
        with _open(root, parts, kind) as fd:
            uid, _, gid = os.getxattr(fd, _OWNER_ATTRIBUTE).decode("ascii").partition(":")
        return min(int(uid), _MAX_ID), min(int(gid), _MAX_ID)
    except (OSError, ValueError, WorkspaceError):  # it has none, or its mode forbids reading
        return _OWNER, _OWNER


def _set_metadata(root: Root, parts: Parts, metadata: Metadata) -> None:
    kind = kind_of(root.lstat(parts).st_mode)
    if kind not in ("file", "directory"):
        raise PathTraversal(text_of(parts), "is a link or special file")
    uid, gid = _read_owner(root, parts, kind)
    with _open(root, parts, kind) as fd:
        if metadata.uid is not None or metadata.gid is not None:
            _write_owner(
                fd, uid if metadata.uid is None else metadata.uid, gid if metadata.gid is None else metadata.gid
            )
        if metadata.mode is not None:
            os.fchmod(fd, metadata.mode & 0o777)


def _write_owner(fd: int, uid: int, gid: int) -> None:
    try:
        os.setxattr(fd, _OWNER_ATTRIBUTE, f"{uid}:{gid}".encode("ascii"))
    except OSError as error:
        if error.errno in _UNSUPPORTED and (uid, gid) == (_OWNER, _OWNER):
            return  # the owner that it has anyway
        raise HttpError(400, f"the server's file system cannot keep an owner: {error.strerror}") from None


def _open(root: Root, parts: Parts, kind: str) -> Any:
    return root.directory(parts) if kind == "directory" else root.file(parts)


def _metadata(request: Request) -> Metadata:
    fields = {name: _number(request, name) for name in ("uid", "gid", "mode")}
    if any(value is not None and value > _MAX_ID for value in fields.values()):
        raise HttpError(400, "uid, gid and mode are 32-bit numbers")
    return Metadata(**{**fields, "mode": None if fields["mode"] is None else fields["mode"] & 0o7777})


def _is_forced(request: Request) -> bool:
    return request.query_params.get("force", "").lower() == "true"


def _number(request: Request, name: str, default: int | None = None) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = parse_whole_number(text)
    if number is None:
        raise HttpError(400, f"{name} must be a whole number")
    return number


def _volume(request: Request) -> Volume:
    """The volume of the request. A wrong token is answered as if the volume did not exist."""
    found = volumes_of(get_service(request)).find_any(request.path_params["id"])
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if found is None or scheme.lower() != "bearer" or not found.has_token(token.strip()):
        raise HttpError(404, "volume not found")
    return found


def _owner(request: Request) -> Tenant:
    """The tenant of the volume. Its secret is worth nothing if the tenant's token may no longer have volumes."""
    tenant = get_service(request).find_tenant_by_id(_volume(request).tenant_id)
    if tenant is None or "sandbox" not in tenant.scopes:
        raise HttpError(404, "volume not found")
    return tenant


def routes() -> list[Any]:
    own = (
        ("POST", "/volumes", create),
        ("GET", "/volumes", list_volumes),
        ("GET", "/volumes/{id}", describe_volume),
        ("DELETE", "/volumes/{id}", destroy),
    )
    content = (
        ("GET", "path", stat_path),
        ("PATCH", "path", update_path),
        ("DELETE", "path", remove_path),
        ("GET", "dir", list_directory),
        ("POST", "dir", make_directory),
        ("GET", "file", read),
        ("PUT", "file", write),
    )
    made = [route(method, path, handler, "sandbox", e2b_refusal) for method, path, handler in own]
    for method, name, handler in content:
        made.append(route(method, f"{CONTENT}{{id}}/{name}", handler, None, e2b_refusal, _owner))
    return made
