"""E2B's envd, served for the sandbox instead of inside it: files by HTTP, processes and the file system by Connect."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.e2b import filesystem, process
from warmcell.interfaces.serve.e2b.box import Box, find_box
from warmcell.interfaces.serve.e2b.connect import (
    STATUSES,
    MessageStream,
    RpcError,
    as_rpc_error,
    end_at_deadline,
    parse_envelopes,
    parse_message,
    rpc_refusal,
    seconds_of,
)
from warmcell.interfaces.serve.e2b.guest_files import FileError
from warmcell.interfaces.serve.requests import read_body, while_connected
from warmcell.interfaces.serve.responses import (
    ClientDisconnected,
    HttpError,
    LongJson,
    error_response,
    json_response,
    parse_whole_number,
)
from warmcell.interfaces.serve.routing import Handler, route
from warmcell.interfaces.serve.sandbox_registry import MAYBE_ELSEWHERE, PROBE_ONLY
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread

_log = logging.getLogger("warmcell.serve")
MAX_FILE = 64 << 20
#: The kernel's PATH_MAX.
MAX_PATH = 4096
#: The form parser may take a microsecond for each byte: other requests have a turn after each piece.
FORM_PIECE = 64 << 10
#: Files up to this size are sent whole, larger ones as they are read.
READ_AHEAD = 1 << 20
#: The shortest timeout of a sandbox that a request has resumed, as in E2B.
RESUMED_SECONDS = 300.0
#: None: an empty message.
Unary = Callable[[Box, dict[str, Any]], Coroutine[Any, Any, Mapping[str, Any] | Response | None]]


class NoSandbox(Exception):
    """The sandbox was killed, is paused, never existed, or the secret is wrong: a client cannot tell which."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.identity = identity


async def box_for(request: Request, *, takes_traffic_token: bool = False) -> Box:
    """Find the sandbox that the headers name. Raises `NoSandbox` if the request does not have its token."""
    identity = request.headers.get("e2b-sandbox-id", "")[:200]
    box = find_box(get_service(request).sandboxes.find_any(identity))
    if box is None or not (
        box.has_token(request.headers.get("x-access-token"))
        or (takes_traffic_token and _has_traffic_token(request, box))
    ):
        raise NoSandbox(identity)
    return await wake(box)


def owner_of(request: Request) -> Tenant | None:
    """The tenant to charge for a request with one of the sandbox's secrets."""
    box = find_box(get_service(request).sandboxes.find_any(request.headers.get("e2b-sandbox-id", "")[:200]))
    if box is None or not (box.has_token(request.headers.get("x-access-token")) or _has_traffic_token(request, box)):
        is_signed = "signature" in request.query_params
        box = _signed_box(request, "write" if request.method == "POST" else "read") if is_signed else None
    return None if box is None else box.entry.tenant


def _has_traffic_token(request: Request, box: Box) -> bool:
    presented = request.headers.get("e2b-traffic-access-token", "").encode()
    return hmac.compare_digest(presented, box.traffic_token.encode())


async def wake(box: Box) -> Box:
    """Resume a paused sandbox if its client asked for that. Its timeout begins anew, so that it is paused again."""
    if box.is_paused:
        if not box.auto_resume:
            raise NoSandbox(box.entry.id)
        await box.resume()
        box.service.sandboxes.prolong(box.entry, max(RESUMED_SECONDS, box.asked.timeout), box.entry.tenant)
    return box


async def _box_for_user(request: Request) -> Box:
    """Find the sandbox. Each known user name means its only user; others are refused."""
    box = await box_for(request)
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    name = (request.query_params.get("username") or "") if request.scope["query_string"] else ""
    if kind.lower() == "basic" and not name:
        try:
            name = b64decode(value).decode().partition(":")[0]
        except ValueError:
            name = "?"
    if name not in box.users:
        hint = "a sandbox has one user: that of its image's USER, else root"
        raise RpcError("unauthenticated", f"unknown user '{name[:40]}': {hint}")
    return box


async def health(request: Request, tenant: Tenant) -> None:
    """SDKs send the sandbox's token. Without it a sandbox that exists has the same answer as one that does not."""
    identity = request.headers.get("e2b-sandbox-id", "")[:200]
    box = find_box(get_service(request).sandboxes.find_any(identity))
    if box is None or box.is_paused or not box.has_token(request.headers.get("x-access-token")):
        raise NoSandbox(identity)


async def read(request: Request, tenant: Tenant) -> Response:
    box, path = await _file_box(request, "read")
    if PROBE_ONLY in request.headers:
        return Response(status_code=204)
    return await while_connected(
        request, _head(box, path) if request.method == "HEAD" else _read(box.files.chunks(path))
    )


async def _head(box: Box, path: str) -> Response:
    """The length of the file, as the guest reports it. The file is not read."""
    found = (await box.files.ask("stat", path=path))["entry"]
    size = found["size"]
    if found["type"] != "FILE_TYPE_FILE" or type(size) is not int or not 0 <= size < 1 << 63:
        raise RpcError("invalid_argument", "not a regular file")
    return Response(headers={"content-length": str(size)}, media_type="application/octet-stream")


async def _read(chunks: AsyncIterator[bytes]) -> Response:
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > READ_AHEAD:
            return StreamingResponse(_prepend(bytes(data), chunks), media_type="application/octet-stream")
    return Response(bytes(data), media_type="application/octet-stream")


async def _prepend(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


async def write(request: Request, tenant: Tenant) -> Response:
    box, path = await _file_box(request, "write")
    if PROBE_ONLY in request.headers:
        return Response(status_code=204)
    metadata = {
        name.removeprefix("x-metadata-"): value
        for name, value in request.headers.items()
        if name.startswith("x-metadata-")
    }
    parts = await _parts(request, path, await read_body(request, MAX_FILE + (1 << 20)))
    return json_response(await while_connected(request, _write(box, parts, metadata)))


async def _write(box: Box, parts: list[tuple[str, bytes]], metadata: dict[str, str]) -> list[dict[str, Any]]:
    written = []
    for name, data in parts:
        entry = await box.files.write(name, data, metadata)
        row = {"path": entry["path"], "name": entry["name"], "type": "file"}
        written.append(row | ({"metadata": entry["metadata"]} if entry.get("metadata") else {}))
    return written


async def _parts(request: Request, path: str, packed: bytes) -> list[tuple[str, bytes]]:
    """Read the names and contents of the files in a body. Decompressed bytes count as request bytes too."""
    body = packed
    if request.headers.get("content-encoding", "").lower() == "gzip":
        body = await in_thread(lambda: _decompress(packed))
        request.app.state.bodies.take(request.scope, len(body))
    if not request.headers.get("content-type", "").startswith("multipart/"):
        return [(path, body)]

    async def stream() -> Any:
        for start in range(0, len(body), FORM_PIECE):
            yield body[start : start + FORM_PIECE]
            await asyncio.sleep(0)

    try:
        form = await MultiPartParser(request.headers, stream(), max_files=1000, max_part_size=MAX_FILE).parse()
    except MultiPartException as error:
        raise RpcError("invalid_argument", f"the body is not a form: {error.message}") from None
    found = []
    for part in form.getlist("file"):
        if isinstance(part, UploadFile):
            found.append((path or part.filename or "", await part.read()))
    if any(not name for name, _ in found):
        raise RpcError("invalid_argument", "path is required")
    return found


def _decompress(body: bytes) -> bytes:
    """Decompress gzip. Raises 413 if the file would be larger than `MAX_FILE`."""
    decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        data = decompressor.decompress(body, MAX_FILE + 1)
    except zlib.error:
        raise RpcError("invalid_argument", "the body is not gzip") from None
    if len(data) > MAX_FILE:
        raise HttpError(413, f"the file is larger than {MAX_FILE} bytes")
    return data


async def _file_box(request: Request, operation: str) -> tuple[Box, str]:
    """Find the sandbox by its token, or by a URL that was signed with it, which does not name the sandbox."""
    path, signature = request.query_params.get("path", ""), request.query_params.get("signature")
    if signature is None or request.headers.get("x-access-token"):
        return await _box_for_user(request), path
    found = _signed_box(request, operation)
    if found is None:
        raise HttpError(401, "invalid signature", headers={MAYBE_ELSEWHERE: "1"})
    expiration = request.query_params.get("signature_expiration")
    if expiration is not None and (parse_whole_number(expiration) or 0) < time.time():
        raise HttpError(401, "signature is already expired")
    return await wake(found), path


def _signed_box(request: Request, operation: str) -> Box | None:
    """Try all sandboxes, so that timing reveals nothing. User and expiration contain no colon: see `Box.sign`."""
    asked, found = request.query_params, None
    path, user, expiration = asked.get("path", ""), asked.get("username") or "", asked.get("signature_expiration")
    presented = asked.get("signature", "").encode("ascii", "replace").decode()
    if ":" in user or (expiration and parse_whole_number(expiration) is None):
        return None
    if len(path) > MAX_PATH:  # hashing it for every sandbox would be expensive, and it can be sent without a token
        return None
    for entry in get_service(request).sandboxes.all():
        box = find_box(entry)
        if box is None or user not in box.users:
            continue
        if hmac.compare_digest(box.sign(path, operation, user, expiration), presented):
            found = box
    return found


def envd_refusal(error: Exception) -> Response:
    if isinstance(error, HttpError):
        return json_response({"code": error.status, "message": error.message}, error.status, error.headers)
    if isinstance(error, FileError) and error.errno in ("ENOSPC", "EDQUOT"):
        return json_response({"code": 507, "message": error.message}, 507)
    refused = as_rpc_error(error)
    return json_response({"code": STATUSES[refused.code], "message": refused.message}, STATUSES[refused.code])


def missing_sandbox(identity: str, reason: str = "") -> Response:
    message = "The sandbox was not found" + (f": {reason}" if reason else "")
    return json_response({"sandboxId": identity, "message": message, "code": 502}, 502)


def with_refusals(handler: Handler, render: Callable[[Any], Response]) -> Any:
    """Make an endpoint that renders errors. The SDKs recognise a missing sandbox by exactly this 502."""

    async def endpoint(request: Request, tenant: Tenant) -> Response | None:
        try:
            return await handler(request, tenant)
        except NoSandbox as error:
            return missing_sandbox(error.identity)
        except ClientDisconnected as error:
            return error_response(error)
        except (RpcError, SandboxError, HttpError) as error:
            return render(error)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            # Messages are read field by field, without a schema.
            _log.info("malformed message: %s", error)
            return render(RpcError("invalid_argument", "the message is malformed"))

    endpoint.render_error = render  # type: ignore[attr-defined]
    return endpoint


def unary(call: Unary) -> Any:
    async def handler(request: Request, tenant: Tenant) -> Response:
        box = await _box_for_user(request)
        message = parse_message(await read_body(request))
        answer = await while_connected(request, call(box, message))
        return answer if isinstance(answer, Response) else json_response(answer or {})

    return with_refusals(handler, lambda error: rpc_refusal(as_rpc_error(error)))


def in_pieces(call: Unary) -> Unary:
    """The same call, with an answer that may have megabytes."""

    async def answer(box: Box, message: dict[str, Any]) -> Response:
        return LongJson(await call(box, message))

    return answer


def stream(begin: Callable[..., Any], ends_program: bool = False) -> Any:
    """`ends_program`: a program that is started ends at the deadline of the call; otherwise only the stream does."""

    async def handler(request: Request, tenant: Tenant) -> Response:
        box = await _box_for_user(request)
        messages = parse_envelopes(await read_body(request))
        if not messages:
            raise RpcError("invalid_argument", "a message is required")
        seconds = seconds_of(request)
        if ends_program:
            return MessageStream(begin(box, messages[0], seconds))
        starting = begin(box, messages[0])
        return MessageStream(starting if seconds is None else end_at_deadline(starting, seconds))

    return with_refusals(handler, _stream_refusal)


def _stream_refusal(error: Exception) -> Response:
    async def fail() -> Any:
        raise as_rpc_error(error)

    return MessageStream(fail())


async def stream_input(request: Request, tenant: Tenant) -> Response:
    box = await box_for(request)
    messages = parse_envelopes(await read_body(request))

    async def answers() -> Any:
        yield [await process.stream_input(box, messages)]

    async def begin() -> Any:
        return answers()

    return MessageStream(begin())


UNARY: dict[str, Unary] = {
    "process.Process/List": in_pieces(process.list_commands),
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
    "filesystem.Filesystem/GetWatcherEvents": in_pieces(filesystem.watcher_events),
    "filesystem.Filesystem/RemoveWatcher": filesystem.remove_watcher,
}
ENDS = frozenset({"process.Process/SendSignal"})


def routes() -> list[Any]:
    """Requests carry the sandbox's token, not the tenant's: hence `owner_of`, and no scope."""
    streams = {
        "process.Process/Start": stream(process.start, ends_program=True),
        "process.Process/Connect": stream(process.attach),
        "process.Process/StreamInput": with_refusals(stream_input, _stream_refusal),
        "filesystem.Filesystem/WatchDir": stream(filesystem.watch_dir),
    }
    calls = {name: unary(call) for name, call in UNARY.items()} | streams
    return [
        route("GET", "/health", with_refusals(health, envd_refusal), None),
        route("GET", "/files", with_refusals(read, envd_refusal), None, envd_refusal, owner_of),
        route("POST", "/files", with_refusals(write, envd_refusal), None, envd_refusal, owner_of),
        *(
            route("POST", f"/{name}", call, None, call.render_error, owner_of, ends_something=name in ENDS)
            for name, call in calls.items()
        ),
    ]
