"""What E2B's clients find inside a sandbox, and here beside it: files by HTTP, processes and file system by Connect."""

from __future__ import annotations

import hmac
import logging
import time
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.e2b import filesystem, process
from warmcell.interfaces.serve.e2b.box import USERS, Box, FileError, box_of
from warmcell.interfaces.serve.e2b.connect import (
    STATUSES,
    MessageStream,
    RpcError,
    as_rpc_error,
    rpc_refusal,
    seconds_of,
    stream_messages,
    unary_message,
)
from warmcell.interfaces.serve.exchange import (
    ClientGone,
    Refused,
    answer,
    read_body,
    refusal,
    while_connected,
    whole_number,
)
from warmcell.interfaces.serve.held_sandboxes import ASKS_ONLY, MAYBE_ELSEWHERE
from warmcell.interfaces.serve.service import service_of
from warmcell.interfaces.serve.tokens import Tenant

_log = logging.getLogger("warmcell.serve")
MAX_FILE = 64 << 20
#: Of a file that is read, before it is decided that it is a large one.
READ_AHEAD = 1 << 20
Unary = Callable[[Box, dict[str, Any]], Awaitable[Mapping[str, Any]]]


class NoSandbox(Exception):
    """It was killed, paused or never there, or the secret is another's: one answer for all."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.identity = identity


async def box_for(request: Request) -> Box:
    """The sandbox that the headers name, for whoever has its secret."""
    identity = request.headers.get("e2b-sandbox-id", "")[:200]
    box = box_of(service_of(request).held.find_any(identity))
    if box is None or not box.knows(request.headers.get("x-access-token")):
        raise NoSandbox(identity)
    return await awake(box)


def owner_of(request: Request) -> Tenant | None:
    """Whose sandbox it is, for who has one of its secrets: what is done with it counts as its tenant's doing."""
    box = box_of(service_of(request).held.find_any(request.headers.get("e2b-sandbox-id", "")[:200]))
    if box is None and "signature" in request.query_params:
        box = _signed_box(request, "read" if request.method == "GET" else "write")
        return None if box is None else box.held.tenant
    if box is None or not (box.knows(request.headers.get("x-access-token")) or _has_traffic_token(request, box)):
        return None
    return box.held.tenant


def _has_traffic_token(request: Request, box: Box) -> bool:
    presented = request.headers.get("e2b-traffic-access-token", "").encode()
    return hmac.compare_digest(presented, box.traffic_token.encode())


async def awake(box: Box) -> Box:
    if box.is_paused:
        if not box.auto_resume:
            raise NoSandbox(box.held.id)
        await box.resume()
    return box


def _user(request: Request) -> str:
    """Whoever is named is the one user that there is; a name that nobody has is refused."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    name = (request.query_params.get("username") or "") if request.scope["query_string"] else ""
    if kind.lower() == "basic" and not name:
        try:
            name = b64decode(value).decode().partition(":")[0]
        except ValueError:
            name = "?"
    if name not in USERS:
        raise RpcError("unauthenticated", f"there is no user '{name[:40]}'")
    return name


async def health(request: Request, tenant: Tenant) -> Response:
    identity = request.headers.get("e2b-sandbox-id", "")[:200]
    box = box_of(service_of(request).held.find_any(identity))
    if box is None or box.is_paused:
        raise NoSandbox(identity)
    return Response(status_code=204)


async def read(request: Request, tenant: Tenant) -> Response:
    box, path = await _file_box(request, "read")
    if ASKS_ONLY in request.headers:
        return Response(status_code=204)
    chunks = box.files.chunks(path)
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > READ_AHEAD:  # a large one goes out as it comes: nobody here needs the whole of it
            return StreamingResponse(_rest(bytes(data), chunks), media_type="application/octet-stream")
    return Response(bytes(data), media_type="application/octet-stream")


async def _rest(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


async def write(request: Request, tenant: Tenant) -> Response:
    box, path = await _file_box(request, "write")
    if ASKS_ONLY in request.headers:
        return Response(status_code=204)
    metadata = {
        name.removeprefix("x-metadata-"): value
        for name, value in request.headers.items()
        if name.startswith("x-metadata-")
    }
    body = await read_body(request, MAX_FILE + (1 << 20))
    written = []
    for name, data in await _parts(request, path, body):
        entry = await box.files.write(name, data, metadata)
        row = {"path": entry["path"], "name": entry["name"], "type": "file"}
        written.append(row | ({"metadata": entry["metadata"]} if entry.get("metadata") else {}))
    return answer(written)


async def _parts(request: Request, path: str, body: bytes) -> list[tuple[str, bytes]]:
    if request.headers.get("content-encoding", "").lower() == "gzip":
        body = _unpacked(body)
    if not request.headers.get("content-type", "").startswith("multipart/"):
        return [(path, body)]

    async def stream() -> Any:
        yield body

    try:
        form = await MultiPartParser(request.headers, stream(), max_files=1000, max_part_size=MAX_FILE).parse()
    except MultiPartException as error:
        raise RpcError("invalid_argument", f"the body is no form: {error.message}") from None
    found = []
    for part in form.getlist("file"):
        if isinstance(part, UploadFile):
            found.append((path or part.filename or "", await part.read()))
    if any(not name for name, _ in found):
        raise RpcError("invalid_argument", "path is needed")
    return found


def _unpacked(body: bytes) -> bytes:
    """No more than a file may have, however much it says that it holds."""
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        data = unpacker.decompress(body, MAX_FILE + 1)
    except zlib.error:
        raise RpcError("invalid_argument", "the body is not gzip") from None
    if len(data) > MAX_FILE:
        raise Refused(413, f"the file is larger than {MAX_FILE} bytes")
    return data


async def _file_box(request: Request, operation: str) -> tuple[Box, str]:
    """By the sandbox's secret, or by a URL that was signed with it: such a one names no sandbox."""
    path, signature = request.query_params.get("path", ""), request.query_params.get("signature")
    if signature is None or request.headers.get("x-access-token"):
        box = await box_for(request)
        _user(request)
        return box, path
    found = _signed_box(request, operation)
    if found is None:
        raise Refused(401, "invalid signature", headers={MAYBE_ELSEWHERE: "1"})
    expiration = request.query_params.get("signature_expiration")
    if expiration is not None and (whole_number(expiration) or 0) < time.time():
        raise Refused(401, "signature is already expired")
    return await awake(found), path


def _signed_box(request: Request, operation: str) -> Box | None:
    """All of them are tried, so that time tells nothing."""
    asked, found = request.query_params, None
    path, user, expiration = asked.get("path", ""), asked.get("username") or "", asked.get("signature_expiration")
    presented = asked.get("signature", "").encode("ascii", "replace").decode()
    for held in service_of(request).held.all():
        box = box_of(held)
        if box is not None and hmac.compare_digest(box.signed(path, operation, user, expiration), presented):
            found = box
    return found


def envd_refusal(error: Exception) -> Response:
    if isinstance(error, Refused):
        return answer({"code": error.status, "message": error.message}, error.status, error.headers)
    if isinstance(error, FileError) and error.errno in ("ENOSPC", "EDQUOT"):
        return answer({"code": 507, "message": error.message}, 507)
    told = as_rpc_error(error)
    return answer({"code": STATUSES[told.code], "message": told.message}, STATUSES[told.code])


def _not_there(error: NoSandbox) -> Response:
    return answer({"sandboxId": error.identity, "message": "The sandbox was not found", "code": 502}, 502)


def guarded(handler: Callable[[Request, Tenant], Awaitable[Response]], render: Callable[[Any], Response]) -> Any:
    """What these clients hang everything on: a sandbox that is not there is exactly this 502."""

    async def endpoint(request: Request, tenant: Tenant) -> Response:
        try:
            return await handler(request, tenant)
        except NoSandbox as error:
            return _not_there(error)
        except ClientGone as error:
            return refusal(error)
        except (RpcError, SandboxError, Refused) as error:
            return render(error)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            # The message's own shape: these clients' messages are read field by field.
            _log.info("a message that is none: %s", error)
            return render(RpcError("invalid_argument", "the message has another shape"))

    endpoint.refuse = render  # type: ignore[attr-defined]
    return endpoint


def unary(call: Unary) -> Any:
    async def handler(request: Request, tenant: Tenant) -> Response:
        box = await box_for(request)
        _user(request)
        message = await unary_message(request)
        return answer(await while_connected(request, call(box, message)))  # type: ignore[arg-type]

    return guarded(handler, lambda error: rpc_refusal(as_rpc_error(error)))


def stream(begin: Callable[..., Any], with_seconds: bool = False) -> Any:
    async def handler(request: Request, tenant: Tenant) -> Response:
        box = await box_for(request)
        _user(request)
        messages = await stream_messages(request)
        if not messages:
            raise RpcError("invalid_argument", "a message is needed")
        more = (seconds_of(request),) if with_seconds else ()
        return MessageStream(begin(box, messages[0], *more))

    return guarded(handler, _told_in_stream)


def _told_in_stream(error: Exception) -> Response:
    async def fail() -> Any:
        raise as_rpc_error(error)

    return MessageStream(fail())


async def stream_input(request: Request, tenant: Tenant) -> Response:
    box = await box_for(request)
    messages = await stream_messages(request)

    async def answers() -> Any:
        yield [await process.stream_input(box, messages)]

    async def begin() -> Any:
        return answers()

    return MessageStream(begin())


UNARY = {
    "process.Process/List": process.listed,
    "process.Process/Update": process.update,
    "process.Process/SendInput": process.send_input,
    "process.Process/SendSignal": process.send_signal,
    "process.Process/CloseStdin": process.close_stdin,
    "filesystem.Filesystem/Stat": filesystem.stat,
    "filesystem.Filesystem/MakeDir": filesystem.make_dir,
    "filesystem.Filesystem/Move": filesystem.move,
    "filesystem.Filesystem/ListDir": filesystem.list_dir,
    "filesystem.Filesystem/Remove": filesystem.remove,
    "filesystem.Filesystem/CreateWatcher": filesystem.create_watcher,
    "filesystem.Filesystem/GetWatcherEvents": filesystem.watcher_events,
    "filesystem.Filesystem/RemoveWatcher": filesystem.remove_watcher,
}
ENDS = frozenset({"process.Process/SendSignal"})


def routes() -> list[Any]:
    """Their secret is the sandbox's, not the tenant's: hence an owner here, and no scope."""
    streams = {
        "process.Process/Start": stream(process.start, with_seconds=True),
        "process.Process/Connect": stream(process.attach),
        "process.Process/StreamInput": guarded(stream_input, _told_in_stream),
        "filesystem.Filesystem/WatchDir": stream(filesystem.watch_dir),
    }
    calls = {name: unary(call) for name, call in UNARY.items()} | streams
    return [
        door("GET", "/health", guarded(health, envd_refusal), None),
        door("GET", "/files", guarded(read, envd_refusal), None, envd_refusal, owner_of),
        door("POST", "/files", guarded(write, envd_refusal), None, envd_refusal, owner_of),
        *(
            door("POST", f"/{name}", call, None, call.refuse, owner_of, ends_something=name in ENDS)
            for name, call in calls.items()
        ),
    ]
