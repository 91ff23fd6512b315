"""The part of a sandbox that has files.

Every method is written once, in `workspace.Workspace`, and lifted into a thread here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from warmcell.core import events
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.operations import Operations
from warmcell.workspace.workspace import AnyPath, Workspace

P = ParamSpec("P")
T = TypeVar("T")
#: Methods of the workspace that are told as events.
_CHANGES = frozenset({"write_file", "remove", "mkdir", "upload", "apply_patch", "restore"})


def _in_thread(
    method: Callable[Concatenate[Workspace, P], T],
) -> Callable[Concatenate[FilingSandbox, P], Coroutine[Any, Any, T]]:
    """A blocking method of the workspace as a method of `FilingSandbox`."""

    @functools.wraps(method)
    async def call(self: FilingSandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result = await self._on_disk(functools.partial(method, self._workspace, *args, **kwargs))
        if events.listeners and method.__name__ in _CHANGES:
            events.emit("file", self.id, {"operation": method.__name__, "path": _named_path(args)})
        return result

    return call


class FilingSandbox:
    """The file methods of `AsyncSandbox`."""

    id: str
    _operations: Operations
    _workspace: Workspace

    async def start(self) -> None:
        """Records the state that `diff` compares with. Entering the context does it, and so does the first call."""
        await self._on_disk(lambda: None)

    read_file = _in_thread(Workspace.read_file)
    read_text = _in_thread(Workspace.read_text)
    write_file = _in_thread(Workspace.write_file)
    list_dir = _in_thread(Workspace.list_dir)
    stat = _in_thread(Workspace.stat)
    exists = _in_thread(Workspace.exists)
    remove = _in_thread(Workspace.remove)
    mkdir = _in_thread(Workspace.mkdir)
    upload = _in_thread(Workspace.upload)
    download = _in_thread(Workspace.download)
    apply_patch = _in_thread(Workspace.apply_patch)
    diff = _in_thread(Workspace.diff)
    read_before = _in_thread(Workspace.read_before)
    mark = _in_thread(Workspace.mark)
    snapshot = _in_thread(Workspace.snapshot)
    restore = _in_thread(Workspace.restore)

    async def _guest_cwd(self, cwd: AnyPath | None) -> str:
        if self._workspace.has_begun and (standing := self._workspace.standing_cwd(cwd)) is not None:
            return standing  # a thread would cost as much as a small run

        def begin_and_look() -> str:
            self._workspace.begin()
            return self._workspace.guest_cwd(cwd)

        return await in_thread(begin_and_look)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        def begin_and_work() -> T:
            self._workspace.begin()
            return work()

        return await self._operations.run(in_thread(begin_and_work))


def _named_path(args: tuple[object, ...]) -> str | None:
    """Of a call about one file; a patch and an archive name their own."""
    first = args[0] if args else None
    return os.fspath(first) if isinstance(first, str | os.PathLike) and "\n" not in str(first) else None
