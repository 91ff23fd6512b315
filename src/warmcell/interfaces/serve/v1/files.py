"""`/v1/sandboxes/{id}/files` and what else is done to them: trees, archives, patches, what changed."""

from __future__ import annotations

import dataclasses
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import InvalidRequest, PathTraversal
from warmcell.interfaces.serve.doors import NOTHING, door
from warmcell.interfaces.serve.exchange import answer, read_body, read_model
from warmcell.interfaces.serve.service import held_of, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.living_models import DirectoryBody, PatchBody
from warmcell.interfaces.serve.v1.queries import PATH, flag_in_query, path_in_query, query, whole_in_query
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.workspace.errors import LimitExceeded, WorkspaceError, WrongKind
from warmcell.workspace.files import MAX_FILE_BYTES, MAX_LIST_ENTRIES

MOST_DEPTH = 32
#: A guest's bytes must not become a page of this server: its script would have the server's origin.
_ONLY_BYTES = {
    "Content-Security-Policy": "sandbox",
    "Content-Disposition": "attachment",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


async def read_file(request: Request, tenant: Tenant) -> Response:
    """The content of a file."""
    most = whole_in_query(request, "max_bytes", MAX_FILE_BYTES, MAX_FILE_BYTES)
    return _bytes(await held_of(request, tenant).sandbox.read_file(_path(request), max_bytes=most))


async def write_file(request: Request, tenant: Tenant) -> Response:
    """Puts the body at the path, making directories on the way unless `parents` is false."""
    held, parents = held_of(request, tenant), flag_in_query(request, "parents", True)
    data = await read_body(request, service_of(request).settings.max_body)
    await held.sandbox.write_file(_path(request), data, parents=parents)
    return Response(status_code=204)


async def remove_file(request: Request, tenant: Tenant) -> Response:
    """Removes a file, or a directory with all that is in it."""
    recursive = flag_in_query(request, "recursive", True)
    await held_of(request, tenant).sandbox.remove(_path(request), recursive=recursive)
    return Response(status_code=204)


async def list_files(request: Request, tenant: Tenant) -> Response:
    """The entries of a directory, sorted."""
    most = whole_in_query(request, "max_entries", MAX_LIST_ENTRIES, MAX_LIST_ENTRIES)
    found = await held_of(request, tenant).sandbox.list_dir(path_in_query(request), max_entries=most)
    return answer([dataclasses.asdict(entry) for entry in found])


async def tree(request: Request, tenant: Tenant) -> Response:
    """Everything below a directory, `depth` levels down, each with its path; links are named and not followed."""
    depth = whole_in_query(request, "depth", MOST_DEPTH, MOST_DEPTH)
    return answer(await _below(held_of(request, tenant).sandbox, path_in_query(request), depth))


async def _below(sandbox: AsyncSandbox, top: str, depth: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    level = [("", await sandbox.list_dir(top))]
    for below in range(1, depth + 1):
        entries = [(prefix + entry.name, entry) for prefix, listed in level for entry in listed]
        found += [dataclasses.asdict(entry) | {"path": path} for path, entry in entries]
        if len(found) > MAX_LIST_ENTRIES:
            raise LimitExceeded(top, f"has more than {MAX_LIST_ENTRIES} entries", limit=MAX_LIST_ENTRIES)
        level = []
        for path in [path for path, entry in entries if entry.is_dir and below < depth]:
            try:
                level.append((f"{path}/", await sandbox.list_dir(f"{top}/{path}")))
            except (WorkspaceError, PathTraversal):
                continue  # it went away, or the guest closed it: its name was told
    return sorted(found, key=lambda entry: str(entry["path"]))


async def stat(request: Request, tenant: Tenant) -> Response:
    """What is at a path: a file or a directory."""
    return answer(dataclasses.asdict(await held_of(request, tenant).sandbox.stat(path_in_query(request))))


async def make_directory(request: Request, tenant: Tenant) -> Response:
    """Makes a directory."""
    held = held_of(request, tenant)
    body = await read_model(request, DirectoryBody, service_of(request).settings.max_body)
    await held.sandbox.mkdir(body.path, parents=body.parents)
    return Response(status_code=204)


async def upload(request: Request, tenant: Tenant) -> Response:
    """Puts the body at `path`, a program with `executable`, or with `extract` unpacks it there, a tar or zip archive:
    all of it, or nothing."""
    held, extract = held_of(request, tenant), flag_in_query(request, "extract")
    data = await read_body(request, service_of(request).settings.max_body)
    path = request.query_params.get("path")
    if path is None:
        raise InvalidRequest("is needed", field="path")
    if not extract and path in (".", "/work"):
        raise WrongKind(path, "is a directory")
    executable = flag_in_query(request, "executable") if "executable" in request.query_params else None
    made = await held.sandbox.upload(data, path, extract=extract, executable=executable)
    return answer({"files": made.files, "total_bytes": made.total_bytes, "skipped": list(made.skipped)}, 201)


async def download(request: Request, tenant: Tenant) -> Response:
    """A file's bytes, or a directory as a tar of its files and directories."""
    most = whole_in_query(request, "max_bytes", MAX_FILE_BYTES, MAX_FILE_BYTES)
    return _bytes(await held_of(request, tenant).sandbox.download(path_in_query(request), max_bytes=most))


async def patch(request: Request, tenant: Tenant) -> Response:
    """Applies a patch, all of it or nothing, and says what changed."""
    held = held_of(request, tenant)
    body = await read_model(request, PatchBody, service_of(request).settings.max_body)
    return answer([dataclasses.asdict(change) for change in await held.sandbox.apply_patch(body.patch, body.path)])


async def read_before(request: Request, tenant: Tenant) -> Response:
    """The content of a file in the state that `diff` compares with; kept of small files."""
    return _bytes(await held_of(request, tenant).sandbox.read_before(_path(request)))


async def mark(request: Request, tenant: Tenant) -> Response:
    """From now on `diff` compares with the files as they are now."""
    await held_of(request, tenant).sandbox.mark()
    return Response(status_code=204)


async def diff(request: Request, tenant: Tenant) -> Response:
    """What was created, modified and deleted since it was made, or since the last mark."""
    return answer([dataclasses.asdict(change) for change in await held_of(request, tenant).sandbox.diff()])


def _path(request: Request) -> str:
    return str(request.path_params["path"])


def _bytes(data: bytes) -> Response:
    return Response(data, headers=_ONLY_BYTES, media_type="application/octet-stream")


def routes() -> list[Any]:
    at, files = "/v1/sandboxes/{id}", "/v1/sandboxes/{id}/files/{path:path}"
    flag = {"type": "boolean"}
    most = query("max_bytes", {"type": "integer", "minimum": 1, "maximum": MAX_FILE_BYTES})
    entries = query("max_entries", {"type": "integer", "minimum": 1, "maximum": MAX_LIST_ENTRIES})
    depth = query("depth", {"type": "integer", "minimum": 1, "maximum": MOST_DEPTH})
    extract, parents, recursive = query("extract", flag), query("parents", flag), query("recursive", flag)
    return [
        door("GET", f"{at}/files", list_files, "sandbox", answers=("Entries",), parameters=[PATH, entries]),
        door("GET", f"{at}/tree", tree, "sandbox", answers=("Tree",), parameters=[PATH, depth]),
        door("GET", f"{at}/stat", stat, "sandbox", answers=("FileStat",), parameters=[PATH]),
        door("GET", f"{at}/diff", diff, "sandbox", answers=("Changes",)),
        door("GET", f"{at}/before/{{path:path}}", read_before, "sandbox", answers=("bytes",)),
        door("POST", f"{at}/mark", mark, "sandbox", **NOTHING),
        door("GET", f"{at}/download", download, "sandbox", answers=("bytes",), parameters=[PATH, most]),
        door(
            "POST",
            f"{at}/upload",
            upload,
            "sandbox",
            raw_body=True,
            answers=("Uploaded",),
            status=201,
            parameters=[PATH | {"required": True}, extract, query("executable", flag)],
        ),
        door("POST", f"{at}/mkdir", make_directory, "sandbox", body=DirectoryBody, **NOTHING),
        door("POST", f"{at}/patch", patch, "sandbox", body=PatchBody, answers=("Changes",)),
        door("GET", files, read_file, "sandbox", answers=("bytes",), parameters=[most]),
        door("PUT", files, write_file, "sandbox", raw_body=True, parameters=[parents], **NOTHING),
        door("DELETE", files, remove_file, "sandbox", parameters=[recursive], **NOTHING),
    ]
