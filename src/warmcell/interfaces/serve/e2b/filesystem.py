"""E2B's file system calls: stat, list, make, move, remove and watch."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.serve.e2b.box import Box
from warmcell.interfaces.serve.e2b.connect import RpcError
from warmcell.interfaces.serve.e2b.guest_files import FileError

Message = Mapping[str, Any]
LOOK_SECONDS = 0.15
KEEPALIVE_LOOKS = 150
MAX_WATCHERS = 16
MAX_ENTRIES = 100_000
#: Entries of one page; the file service sends 1,000. A forged page of 2 MiB has 690,000, which take seconds to convert.
MAX_PAGE = 2000
#: A path has at most 4096 characters, and each level takes two.
MAX_DEPTH = 2048
#: Bounds one answer to a client, whose pages a guest controls.
MAX_BYTES, MAX_EVENTS = 32 << 20, 10_000


async def stat(box: Box, fields: dict[str, Any]) -> Message:
    return {"entry": entry((await box.files.ask("stat", path=_path(fields)))["entry"])}


async def make_dir(box: Box, fields: dict[str, Any]) -> Message:
    return {"entry": entry((await box.files.ask("mkdir", path=_path(fields)))["entry"])}


async def move(box: Box, fields: dict[str, Any]) -> Message:
    moved = await box.files.ask("move", source=_path(fields, "source"), destination=_path(fields, "destination"))
    return {"entry": entry(moved["entry"])}


async def remove(box: Box, fields: dict[str, Any]) -> None:
    await box.files.ask("remove", path=_path(fields))


async def list_dir(box: Box, fields: dict[str, Any]) -> Response:
    """Encode each page as it arrives: encoding all entries at once holds up the event loop for about a second."""
    encoded: list[str] = []
    depth, offset, count, size = min(MAX_DEPTH, max(1, int(fields.get("depth") or 1))), 0, 0, 0
    while True:
        page = await box.files.ask("list", path=_path(fields), depth=depth, offset=offset)
        if rows := _rows(page, "entries"):
            encoded.append(json.dumps([entry(item) for item in rows], separators=(",", ":"))[1:-1])
            count, size = count + len(rows), size + len(encoded[-1])
        if max(offset, count) > MAX_ENTRIES or size > MAX_BYTES:
            raise RpcError("failed_precondition", f"more than {MAX_ENTRIES} entries or {MAX_BYTES} bytes: list less")
        if page["more"] is not True or page["next"] <= offset:
            return Response(f'{{"entries":[{",".join(encoded)}]}}', media_type="application/json")
        offset = page["next"]


def _rows(page: dict[str, Any], name: str) -> list[Any]:
    rows: list[Any] = page[name]
    if len(rows) > MAX_PAGE:
        raise RpcError("internal", f"unexpected answer from the file service: a page of {len(rows)} {name}")
    return rows


def entry(found: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "type", "path", "mode", "permissions", "owner", "group")
    plain = {name: found.get(name) for name in names}
    plain |= {"size": str(found.get("size", 0)), "metadata": found.get("metadata") or {}}
    plain["modifiedTime"] = rfc3339(int(found.get("seconds", 0)), int(found.get("nanoseconds", 0)))
    return plain | ({"symlinkTarget": found["target"]} if "target" in found else {})


class Watcher:
    """Polls the file service, which collects the events of inotify in order."""

    def __init__(self, box: Box, fields: dict[str, Any]) -> None:
        self._box, self.path, self.id = box, _path(fields), secrets.token_hex(8)
        self._is_recursive, self._with_entry = fields.get("recursive") is True, fields.get("includeEntry") is True

    async def start(self) -> None:
        if len(self._box.watchers) >= MAX_WATCHERS:
            raise RpcError("resource_exhausted", f"the sandbox already has {MAX_WATCHERS} watchers; remove one")
        self._box.watchers[self.id] = self  # before the wait: several may start at once
        try:
            await self._box.files.ask("watch", watcher=self.id, path=self.path, recursive=self._is_recursive)
        except BaseException as error:
            del self._box.watchers[self.id]
            if not isinstance(error, FileError):
                self._box.files.release_later("unwatch", watcher=self.id)  # it may have begun
                raise
            if error.errno == "ENOTDIR":
                await self._box.files.ask("stat", path=self.path)  # raises not_found if it does not exist
            raise RpcError(error.code, error.message) from None

    async def take(self) -> list[dict[str, Any]]:
        """The events since the last call. After about `MAX_EVENTS`, the rest is left for the next call."""
        found: list[dict[str, Any]] = []
        has_more, size = True, 0
        while has_more and len(found) < MAX_EVENTS and size < MAX_BYTES:
            page = await self._box.files.ask("events", watcher=self.id)
            found += [{"name": name, "type": f"EVENT_TYPE_{kind}"} for name, kind in _rows(page, "events")]
            size += len(repr(page))
            has_more = page["more"] is True and bool(page["events"])
        for event in found if self._with_entry else ():
            with suppress(FileError):
                path = f"{self.path.rstrip('/')}/{event['name']}"
                event["entry"] = entry((await self._box.files.ask("stat", path=path))["entry"])
        return found

    def end(self) -> None:
        """End the watch, without waiting for the guest. The file service runs on while the sandbox is paused."""
        self._box.watchers.pop(self.id, None)
        self._box.files.release_later("unwatch", watcher=self.id)


async def watch_dir(box: Box, fields: dict[str, Any]) -> AsyncIterator[list[Message]]:
    watcher = Watcher(box, fields)
    await watcher.start()
    return _poll(watcher)


async def _poll(watcher: Watcher) -> AsyncIterator[list[Message]]:
    try:
        yield [{"start": {}}]
        looks = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            looks += 1
            if found := await watcher.take():
                yield [{"filesystem": event} for event in found]
            if looks % KEEPALIVE_LOOKS == 0:
                yield [{"keepalive": {}}]
    finally:
        watcher.end()


async def create_watcher(box: Box, fields: dict[str, Any]) -> Message:
    watcher = Watcher(box, fields)
    await watcher.start()
    return {"watcherId": watcher.id}


async def watcher_events(box: Box, fields: dict[str, Any]) -> Message:
    return {"events": await _watcher(box, fields).take()}


async def remove_watcher(box: Box, fields: dict[str, Any]) -> None:
    _watcher(box, fields).end()


def _watcher(box: Box, fields: dict[str, Any]) -> Watcher:
    found: Watcher | None = box.watchers.get(str(fields.get("watcherId")))
    if found is None:
        raise RpcError("not_found", "watcher not found")
    return found


def _path(fields: dict[str, Any], name: str = "path") -> str:
    found = fields.get(name)
    if not isinstance(found, str) or "\0" in found:
        raise RpcError("invalid_argument", f"{name} is required")
    return found
