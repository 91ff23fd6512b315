"""The files of a remote sandbox, as `AsyncSandbox` has them."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import quote

from warmcell.interfaces.client.files import Made, archived, maybe_text, path_text
from warmcell.interfaces.client.wire import record
from warmcell.lifetime.threads import in_thread
from warmcell.workspace.diff import FsChange
from warmcell.workspace.files import MAX_FILE_BYTES, MAX_LIST_ENTRIES, DirEntry, FileStat
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.transfer import Uploaded
from warmcell.workspace.workspace import AnyPath


class RemoteFiles(ABC):
    """One half of `AsyncRemoteSandbox`."""

    @abstractmethod
    async def ask(self, method: str, where: str, **more: Any) -> Any: ...

    async def read_file(self, path: AnyPath, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        data: bytes = await self._file("GET", path, max_bytes=max_bytes)
        return data

    async def read_text(self, path: AnyPath, *, encoding: str = "utf-8", max_bytes: int = MAX_FILE_BYTES) -> str:
        return (await self.read_file(path, max_bytes=max_bytes)).decode(encoding, "replace")

    async def write_file(self, path: AnyPath, data: str | bytes, *, parents: bool = True) -> None:
        await self._file("PUT", path, data.encode() if isinstance(data, str) else data, parents=parents)

    async def remove(self, path: AnyPath, *, recursive: bool = True) -> None:
        await self._file("DELETE", path, recursive=recursive)

    async def list_dir(self, path: AnyPath = ".", *, max_entries: int = MAX_LIST_ENTRIES) -> list[DirEntry]:
        found = await self.ask("GET", "files", params={"path": path_text(path), "max_entries": max_entries})
        return [record(DirEntry, entry) for entry in found]

    async def stat(self, path: AnyPath) -> FileStat:
        made: FileStat = record(FileStat, await self.ask("GET", "stat", params={"path": path_text(path)}))
        return made

    async def exists(self, path: AnyPath) -> bool:
        try:
            return bool(await self.stat(path))
        except FileNotFoundError:
            return False

    async def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        await self.ask("POST", "mkdir", json={"path": path_text(path), "parents": parents})

    async def upload(
        self,
        source: bytes | AnyPath,
        path: AnyPath | None = None,
        *,
        extract: bool = False,
        executable: bool | None = None,
    ) -> Uploaded:
        """Brings in bytes, or a file or directory of this host."""
        if isinstance(source, bytes):
            sent = Made(source, maybe_text(path), extract, executable)
        else:
            sent = await in_thread(lambda: archived(path_text(source), maybe_text(path), extract))
            if not sent.extract and path is not None and await self._is_directory(path):
                sent = dataclasses.replace(sent, path=f"{path_text(path)}/{os.path.basename(path_text(source))}")
        params = {"extract": str(sent.extract).lower(), "path": "." if sent.path is None else sent.path}
        if not sent.extract and sent.executable is not None:
            params["executable"] = str(sent.executable).lower()
        found = await self.ask("POST", "upload", params=params, content=sent.data, seconds=600)
        return Uploaded(found["files"], found["total_bytes"], (*sent.skipped, *found["skipped"]))

    async def _is_directory(self, path: AnyPath) -> bool:
        try:
            return (await self.stat(path)).is_dir
        except FileNotFoundError:
            return False

    async def download(self, path: AnyPath = ".", *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        data: bytes = await self.ask("GET", "download", params={"path": path_text(path), "max_bytes": max_bytes})
        return data

    async def apply_patch(self, patch: str | bytes, path: AnyPath = ".") -> list[FsChange]:
        text = patch.decode("utf-8", "surrogateescape") if isinstance(patch, bytes) else patch
        found = await self.ask("POST", "patch", json={"patch": text, "path": path_text(path)})
        return [record(FsChange, change) for change in found]

    async def diff(self) -> list[FsChange]:
        return [record(FsChange, change) for change in await self.ask("GET", "diff")]

    async def read_before(self, path: AnyPath) -> bytes:
        data: bytes = await self.ask("GET", f"before/{_quoted(path_text(path))}")
        return data

    async def mark(self) -> None:
        await self.ask("POST", "mark", seconds=120)

    async def snapshot(self) -> SnapshotId:
        taken = await self.ask("POST", "snapshots", seconds=120)
        return SnapshotId(taken["id"], tuple(taken["skipped"]))

    async def restore(self, snapshot: str) -> None:
        await self.ask("POST", "restore", json={"snapshot": str(snapshot)}, seconds=120)

    async def _file(self, method: str, path: AnyPath, data: bytes | None = None, **params: Any) -> Any:
        shown = {name: str(value).lower() for name, value in params.items()}
        return await self.ask(method, f"files/{_quoted(path_text(path))}", params=shown, content=data)


def _quoted(path: str) -> str:
    """With steps up said in full: left as dots they would be taken here, and the request would go elsewhere."""
    steps = (quote(step, safe="") for step in path.split("/"))
    return "/".join(step.replace(".", "%2E") if step in (".", "..") else step for step in steps)
