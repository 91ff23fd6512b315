"""E2B's file system calls: what is there, moved, made, removed, watched."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from warmcell.interfaces.serve.e2b.box import Box, FileError, rfc3339
from warmcell.interfaces.serve.e2b.connect import RpcError

Message = Mapping[str, Any]
LOOK_SECONDS = 0.15
KEEPALIVE_LOOKS = 150
MAX_WATCHERS = 16


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
    depth, has_more = max(1, int(asked.get("depth") or 1)), True
    while has_more:
        page = await box.files.ask("list", path=_path(asked), depth=depth, offset=len(found))
        found += page["entries"]
        has_more = page["more"] is True and bool(page["entries"])
    return {"entries": [entry(item) for item in found]}


def entry(found: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "type", "path", "mode", "permissions", "owner", "group")
    shown = {name: found.get(name) for name in names}
    shown |= {"size": str(found.get("size", 0)), "metadata": found.get("metadata") or {}}
    shown["modifiedTime"] = rfc3339(int(found.get("seconds", 0)), int(found.get("nanoseconds", 0)))
    return shown | ({"symlinkTarget": found["target"]} if "target" in found else {})


class Watcher:
    """Looks again and again, and says what became different."""

    def __init__(self, box: Box, asked: dict[str, Any]) -> None:
        self._box, self.path = box, _path(asked)
        self._is_recursive, self._with_entry = asked.get("recursive") is True, asked.get("includeEntry") is True
        self._before: dict[str, list[Any]] = {}
        self.events: list[dict[str, Any]] = []
        self._looking: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()

    async def begin(self) -> None:
        try:
            self._before = await self._tree()
        except FileError as error:
            code = "not_found" if error.errno == "ENOENT" else "invalid_argument"
            if error.errno == "ENOTDIR":
                await self._box.files.ask("stat", path=self.path)  # says that it is not there, where it is not
            raise RpcError(code, error.message) from None

    def go_on(self) -> None:
        self._looking = asyncio.ensure_future(self._keep_looking())

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def take(self) -> list[dict[str, Any]]:
        events, self.events = self.events, []
        return events

    async def _keep_looking(self) -> None:
        while len(self.events) < 10_000:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Adds to `events` what became different since the last look; one at a time."""
        async with self._one:
            self.events += await self._differences()

    async def _differences(self) -> list[dict[str, Any]]:
        try:
            now = await self._tree()
        except FileError:
            now = {}
        found = [{"name": name, "type": f"EVENT_TYPE_{kind}"} for name, kind in changes(self._before, now)]
        self._before = now
        if self._with_entry:
            for event in found:
                if event["name"] in now:
                    await self._add_entry(event)
        return found

    async def _add_entry(self, event: dict[str, Any]) -> None:
        try:
            path = f"{self.path.rstrip('/')}/{event['name']}"
            event["entry"] = entry((await self._box.files.ask("stat", path=path))["entry"])
        except FileError:
            return

    async def _tree(self) -> dict[str, list[Any]]:
        found = (await self._box.files.ask("tree", path=self.path, recursive=self._is_recursive)).get("tree")
        return found if isinstance(found, dict) else {}


def changes(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> list[tuple[str, str]]:
    """Pure. What went away under one name and is there under another was renamed; its new name is new."""
    arrived = {tuple(look[:1]) for name, look in now.items() if name not in before}
    found = []
    for name, look in before.items():
        if name not in now:
            found.append((name, "RENAME" if tuple(look[:1]) in arrived else "REMOVE"))
    for name, look in now.items():
        if name not in before:
            # As envd's own watcher tells of a file that was uploaded: made, given its mode, filled.
            found += [(name, "CREATE")] + ([(name, "CHMOD"), (name, "WRITE")] if look[2] else [])
        elif look[:3] != before[name][:3]:
            found.append((name, "WRITE"))
        elif look != before[name]:
            found.append((name, "CHMOD"))
    return found


async def watch_dir(box: Box, asked: dict[str, Any]) -> AsyncIterator[Message]:
    watcher = Watcher(box, asked)
    await watcher.begin()
    yield {"start": {}}
    looks = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        looks += 1
        await watcher.look()
        for event in watcher.take():
            yield {"filesystem": event}
        if looks % KEEPALIVE_LOOKS == 0:
            yield {"keepalive": {}}


async def create_watcher(box: Box, asked: dict[str, Any]) -> Message:
    if len(box.watchers) >= MAX_WATCHERS:
        raise RpcError("resource_exhausted", f"there are {MAX_WATCHERS} watchers already")
    watcher, identity = Watcher(box, asked), secrets.token_hex(8)
    await watcher.begin()
    watcher.go_on()
    box.watchers[identity] = watcher
    box.held.on_close.append(watcher.stop)
    return {"watcherId": identity}


async def watcher_events(box: Box, asked: dict[str, Any]) -> Message:
    watcher = _watcher(box, asked)
    await watcher.look()  # what happened before the question is in the answer
    return {"events": watcher.take()}


async def remove_watcher(box: Box, asked: dict[str, Any]) -> Message:
    _watcher(box, asked).stop()
    del box.watchers[str(asked.get("watcherId"))]
    return {}


def _watcher(box: Box, asked: dict[str, Any]) -> Watcher:
    found = box.watchers.get(str(asked.get("watcherId")))
    if found is None:
        raise RpcError("not_found", "there is no such watcher")
    return found  # type: ignore[no-any-return]


def _path(asked: dict[str, Any], name: str = "path") -> str:
    found = asked.get(name)
    if not isinstance(found, str) or "\0" in found:
        raise RpcError("invalid_argument", f"{name} is needed")
    return found
