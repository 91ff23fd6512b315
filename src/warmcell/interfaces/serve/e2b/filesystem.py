"""E2B's file system calls: what is there, moved, made, removed, watched."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.e2b.box import Box, FileError, rfc3339
from warmcell.interfaces.serve.e2b.connect import RpcError

Message = Mapping[str, Any]
LOOK_SECONDS = 0.15
KEEPALIVE_LOOKS = 150
MAX_WATCHERS = 16
MAX_ENTRIES = 100_000
#: No path has more levels: one of them takes at least two characters.
MAX_DEPTH = 2048


async def stat(box: Box, asked: dict[str, Any]) -> Message:
    return {"entry": entry((await box.files.ask("stat", path=_path(asked)))["entry"])}


async def make_dir(box: Box, asked: dict[str, Any]) -> Message:
    return {"entry": entry((await box.files.ask("mkdir", path=_path(asked)))["entry"])}


async def move(box: Box, asked: dict[str, Any]) -> Message:
    moved = await box.files.ask("move", source=_path(asked, "source"), destination=_path(asked, "destination"))
    return {"entry": entry(moved["entry"])}


async def remove(box: Box, asked: dict[str, Any]) -> Message:
    await box.files.ask("remove", path=_path(asked))
    return {}


async def list_dir(box: Box, asked: dict[str, Any]) -> Message:
    found: list[dict[str, Any]] = []
    depth, offset = min(MAX_DEPTH, max(1, int(asked.get("depth") or 1))), 0
    while max(offset, len(found)) <= MAX_ENTRIES:  # it is a guest who says how many there are
        page = await box.files.ask("list", path=_path(asked), depth=depth, offset=offset)
        found += page["entries"]
        if page["more"] is not True or page["next"] <= offset:
            break
        offset = page["next"]
    else:
        raise RpcError("failed_precondition", f"there are more than {MAX_ENTRIES} entries; ask for a smaller depth")
    return {"entries": [entry(item) for item in found]}


def entry(found: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "type", "path", "mode", "permissions", "owner", "group")
    shown = {name: found.get(name) for name in names}
    shown |= {"size": str(found.get("size", 0)), "metadata": found.get("metadata") or {}}
    shown["modifiedTime"] = rfc3339(int(found.get("seconds", 0)), int(found.get("nanoseconds", 0)))
    return shown | ({"symlinkTarget": found["target"]} if "target" in found else {})


class Watcher:
    """The kernel tells the guest's side what happens, in order; here it is asked for again and again."""

    def __init__(self, box: Box, asked: dict[str, Any]) -> None:
        self._box, self.path, self.id = box, _path(asked), secrets.token_hex(8)
        self._is_recursive, self._with_entry = asked.get("recursive") is True, asked.get("includeEntry") is True

    async def begin(self) -> None:
        """Counted before it is there: several may come at once."""
        if len(self._box.watchers) >= MAX_WATCHERS:
            raise RpcError("resource_exhausted", f"there are {MAX_WATCHERS} watchers already")
        self._box.watchers[self.id] = self
        try:
            await self._box.files.ask("watch", id=self.id, path=self.path, recursive=self._is_recursive)
        except BaseException as error:
            del self._box.watchers[self.id]
            if not isinstance(error, FileError):
                raise
            if error.errno == "ENOTDIR":
                await self._box.files.ask("stat", path=self.path)  # says that it is not there, where it is not
            raise RpcError(error.code, error.message) from None

    async def take(self) -> list[dict[str, Any]]:
        """What has happened since the last time."""
        found: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            page = await self._box.files.ask("events", id=self.id)
            found += [{"name": name, "type": f"EVENT_TYPE_{kind}"} for name, kind in page["events"]]
            has_more = page["more"] is True and bool(page["events"])
        if self._with_entry:
            for event in found:
                await self._add_entry(event)
        return found

    async def end(self) -> None:
        self._box.watchers.pop(self.id, None)
        if not self._box.is_paused:
            await self._box.files.ask("unwatch", id=self.id)

    async def _add_entry(self, event: dict[str, Any]) -> None:
        try:
            path = f"{self.path.rstrip('/')}/{event['name']}"
            event["entry"] = entry((await self._box.files.ask("stat", path=path))["entry"])
        except FileError:
            return


async def watch_dir(box: Box, asked: dict[str, Any]) -> AsyncIterator[list[Message]]:
    watcher = Watcher(box, asked)
    await watcher.begin()
    return _watched(watcher)


async def _watched(watcher: Watcher) -> AsyncIterator[list[Message]]:
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
        with suppress(RpcError, SandboxError):  # it has ended with all that was watched in it
            await watcher.end()


async def create_watcher(box: Box, asked: dict[str, Any]) -> Message:
    watcher = Watcher(box, asked)
    await watcher.begin()
    return {"watcherId": watcher.id}


async def watcher_events(box: Box, asked: dict[str, Any]) -> Message:
    return {"events": await _watcher(box, asked).take()}


async def remove_watcher(box: Box, asked: dict[str, Any]) -> Message:
    await _watcher(box, asked).end()
    return {}


def _watcher(box: Box, asked: dict[str, Any]) -> Watcher:
    found: Watcher | None = box.watchers.get(str(asked.get("watcherId")))
    if found is None:
        raise RpcError("not_found", "there is no such watcher")
    return found


def _path(asked: dict[str, Any], name: str = "path") -> str:
    found = asked.get(name)
    if not isinstance(found, str) or "\0" in found:
        raise RpcError("invalid_argument", f"{name} is needed")
    return found
