"""The MCP server's request handlers, and a sandbox's files as resources. `transports.py` connects clients to it.

A resource is `sandbox:///path`, where the path is relative to the work directory.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import mimetypes
import time
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from warmcell.core.door_text import explain, in_guest_terms
from warmcell.core.errors import SandboxError
from warmcell.interfaces.mcp.clients import Client, Clients, SandboxFactory, while_awaited
from warmcell.sandbox.tools.answers import failure
from warmcell.sandbox.tools.definitions import Definition

INSTRUCTIONS = (
    "A sandbox of your own: run code and commands and use files in a private work directory. It is closed by default: "
    "no network and no host files unless the operator allowed some. Files persist between calls and are deleted when "
    "you disconnect. `denials` lists what was refused, with what the operator could do to allow it."
)
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
SCHEME = "sandbox"
MAX_BYTES = 4 * 1024 * 1024
TEMPLATE = types.ResourceTemplate(
    name="file", title="A file of the sandbox", uri_template=f"{SCHEME}:///{{+path}}", description="By its path."
)


def make_server(
    make: SandboxFactory, languages: Sequence[str] | None = None, *, is_http: bool = False, is_stateful: bool = True
) -> Server[Clients]:
    """A server whose clients each get a sandbox from `make`."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[Clients]:
        clients = Clients(make, languages, is_stateful)
        try:
            yield clients
        finally:
            await clients.end_all()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK deprecates logging, which clients still use
        server = Server(
            "warmcell",
            version=version("warmcell"),
            title="Warmcell",
            instructions=INSTRUCTIONS,
            lifespan=lifespan,
            on_list_tools=_list_tools,
            on_call_tool=_call_tool,
            on_list_resources=_list_resources,
            on_list_resource_templates=_list_templates,
            on_read_resource=_read_resource,
            on_set_logging_level=_set_level,
        )
    if is_http:  # the newest protocol revision has no HTTP sessions to keep a sandbox for
        server.add_request_handler("server/discover", types.RequestParams, _offer_sessions_only)
    return server


async def _client(context: Any) -> Client:
    try:
        client: Client = await context.lifespan_context.of(context)
    except SandboxError as error:
        raise MCPError(types.INTERNAL_ERROR, explain(error)) from None
    return client


async def _list_tools(context: Any, _: object) -> types.ListToolsResult:
    client = await _client(context)
    return types.ListToolsResult(tools=[_as_tool(item) for item in client.tools.definitions])


async def _call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    client = await _client(context)

    async def call() -> dict[str, Any]:
        async with client.place.call_slot():
            return await _answer(context, client, params.name, params.arguments or {})

    try:
        answer = await while_awaited(context, call())
    except SandboxError as error:  # refused before it could start
        answer = failure(error)
    await _log(context, answer)
    return await _as_result(client, answer)


async def _answer(context: Any, client: Client, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if not is_wanted(context):
        return await client.tools.call(name, arguments)  # type: ignore[no-any-return]
    seconds = arguments.get("timeout_secs")
    total = float(seconds) if type(seconds) is int and 0 < seconds < 1e6 else None
    async with Progress(context, total) as progress:
        return await client.tools.call(name, arguments, progress.add_output)  # type: ignore[no-any-return]


async def _list_resources(context: Any, _: object) -> types.ListResourcesResult:
    """List the files of the work directory, up to the limit of `list_files`."""
    client = await _client(context)
    found: dict[str, Any] = await client.tools.call("list_files", {"recursive": True})
    sizes = {entry["path"]: entry["size"] for entry in found.get("entries", []) if entry["kind"] == "file"}
    files = [
        types.Resource(name=path, uri=uri_of(path), mime_type=_mime(path), size=size) for path, size in sizes.items()
    ]
    return types.ListResourcesResult(resources=files)


async def _list_templates(context: Any, _: object) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=[TEMPLATE])


async def _read_resource(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    content = await read_resource(await _client(context), str(params.uri))
    return types.ReadResourceResult(contents=[content])


async def _set_level(context: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
    context.session._connection.state["log_level"] = params.level
    return types.EmptyResult()


async def _offer_sessions_only(context: Any, _: object) -> types.DiscoverResult:
    return types.DiscoverResult(
        supported_versions=list(HANDSHAKE_PROTOCOL_VERSIONS), capabilities=types.ServerCapabilities()
    )


async def _log(context: Any, answer: dict[str, Any]) -> None:
    """Log refusals and failures of the host."""
    entries = [("warning", {"refused": denial}) for denial in answer.get("denials", [])]
    if answer.get("fault") == "host":
        entries.append(("error", {"failed": answer["stderr"]}))
    lowest = _LEVELS.index(context.session._connection.state.get("log_level", "info"))
    for level, data in entries:
        if _LEVELS.index(level) >= lowest:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                await context.session.send_log_message(level, data, "warmcell", related_request_id=context.request_id)


def _as_tool(definition: Definition) -> types.Tool:
    return types.Tool(
        name=definition.name,
        title=definition.title,
        description=definition.description,
        input_schema=dict(definition.parameters),
        output_schema=dict(definition.answers),
        annotations=types.ToolAnnotations(
            title=definition.title,
            read_only_hint=definition.is_read_only,
            destructive_hint=definition.is_destructive,
            idempotent_hint=definition.is_idempotent,
            open_world_hint=False,
        ),
    )


async def _as_result(client: Client, answer: dict[str, Any]) -> types.CallToolResult:
    """The answer as structure and text, with images and links to files with the full output."""
    blocks: list[Any] = [types.TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))]
    for output in answer.get("outputs", []):
        image = await read_image(client, output)
        blocks += [image] if image is not None else []
    for path in answer.get("full_output", {}).values():
        blocks.append(types.ResourceLink(type="resource_link", name=path, uri=uri_of(path)))
    return types.CallToolResult(content=blocks, structured_content=answer, is_error=answer["status"] != "success")


SECONDS_BETWEEN = 0.5
_LONGEST_MESSAGE = 2000


class Progress:
    """Reports at a fixed rate, however much is printed."""

    def __init__(self, context: Any, total: float | None) -> None:
        self._context = context
        self._total = total
        self._output = ""
        self._began = time.monotonic()

    def add_output(self, stream: str, text: str) -> None:
        self._output = (self._output + text)[-_LONGEST_MESSAGE:]

    async def __aenter__(self) -> Progress:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # the client may have disconnected
            await self._ticking

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN)
            message, self._output = self._output, ""
            elapsed = round(time.monotonic() - self._began, 3)
            await self._context.session.report_progress(elapsed, self._total, in_guest_terms(message) or None)


def is_wanted(context: Any) -> bool:
    """Whether the client asked for progress."""
    meta = context.meta or {}
    return any(meta.get(name) is not None for name in ("progress_token", "progressToken"))


def uri_of(path: str) -> str:
    return f"{SCHEME}:///{quote(path)}"


async def read_resource(client: Client, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    try:
        parts = urlsplit(uri)
        is_valid = parts.scheme == SCHEME and not (parts.netloc or parts.query or parts.fragment)
    except ValueError:  # a bracket without the other, or characters that a host name cannot have
        is_valid = False
    if not is_valid:
        raise MCPError(types.INVALID_PARAMS, f"invalid resource URI {uri[:200]!r}: use {SCHEME}:///PATH")
    path = unquote(parts.path.lstrip("/"))
    try:
        raw = await client.place.sandbox.read_file(path, max_bytes=MAX_BYTES)
    except SandboxError as error:
        raise MCPError(types.INVALID_PARAMS, explain(error)) from None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        blob = base64.b64encode(raw).decode()
        return types.BlobResourceContents(uri=uri, mime_type=_mime(path), blob=blob)
    return types.TextResourceContents(uri=uri, mime_type=_mime(path) or "text/plain", text=text)


async def read_image(client: Client, output: dict[str, str]) -> types.ImageContent | None:
    """An image that a cell displayed; None for other outputs and images that were not saved."""
    if "path" not in output:
        return None
    try:
        raw = await client.place.sandbox.read_file(output["path"], max_bytes=MAX_BYTES)
    except SandboxError:  # too large or already removed; the answer has its path
        return None
    return types.ImageContent(type="image", data=base64.b64encode(raw).decode(), mime_type=output["mime"])


def _mime(path: str) -> str | None:
    return mimetypes.guess_type(path)[0]
