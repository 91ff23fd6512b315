"""A sandbox's files as resources: `sandbox:///path`, where the path is relative to the work directory."""

from __future__ import annotations

import base64
import mimetypes
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import mcp_types as types
from mcp.shared.exceptions import MCPError

from warmcell.core.door_text import explain
from warmcell.core.errors import SandboxError
from warmcell.interfaces.mcp.clients import Client

SCHEME = "sandbox"
MAX_BYTES = 4 * 1024 * 1024
TEMPLATE = types.ResourceTemplate(
    name="file", title="A file of the sandbox", uri_template=f"{SCHEME}:///{{+path}}", description="By its path."
)


def uri_of(path: str) -> str:
    return f"{SCHEME}:///{quote(path)}"


async def list_resources(client: Client) -> list[types.Resource]:
    """The files of the work directory, up to the limit of `list_files`."""
    found: dict[str, Any] = await client.tools.call("list_files", {"recursive": True})
    return [
        types.Resource(
            name=entry["path"], uri=uri_of(entry["path"]), mime_type=_mime(entry["path"]), size=entry["size"]
        )
        for entry in found.get("entries", [])
        if entry["kind"] == "file"
    ]


async def read_resource(client: Client, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    parts = urlsplit(uri)
    if parts.scheme != SCHEME or parts.netloc or parts.query or parts.fragment:
        raise MCPError(types.INVALID_PARAMS, f"invalid resource URI {uri[:200]!r}: use {SCHEME}:///PATH")
    path = unquote(parts.path.lstrip("/"))
    try:
        raw = await client.sandbox.read_file(path, max_bytes=MAX_BYTES)
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
        raw = await client.sandbox.read_file(output["path"], max_bytes=MAX_BYTES)
    except SandboxError:  # too large or already removed; the answer has its path
        return None
    return types.ImageContent(type="image", data=base64.b64encode(raw).decode(), mime_type=output["mime"])


def _mime(path: str) -> str | None:
    return mimetypes.guess_type(path)[0]
