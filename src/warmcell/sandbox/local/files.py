"""LocalFiles and LocalChanges: the methods of `Workspace` and of a `ChangeLayer`, each in a thread."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from warmcell.core import events
from warmcell.core.errors import InvalidRequest
from warmcell.lifetime.threads import running_loop
from warmcell.sandbox.local.context import SandboxContext
from warmcell.workspace.file_watch import SLICE_SECONDS, FileEvent, FileWatch
from warmcell.workspace.workspace import AnyPath, Workspace

if TYPE_CHECKING:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.changes.model import Change, CommitReport

T = TypeVar("T")
#: Methods that emit a "file" event.
_CHANGES = frozenset({"write_file", "remove", "mkdir", "upload", "apply_patch", "restore"})
#: Called with the result that a cancelled caller does not get.
_UNDO: dict[str, Callable[..., object]] = {"snapshot": Workspace.remove_snapshot}


class LocalFiles:
    def __init__(self, context: SandboxContext) -> None:
        self._context = context
        self._watches: weakref.WeakSet[LocalWatch] = weakref.WeakSet()
        self._lock = threading.Lock()

    async def call(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        context = self._context
        undo: Callable[[Workspace, T], object] | None = _UNDO.get(method.__name__)
        discard = None if undo is None else functools.partial(undo, context.workspace)
        result: T = await context.on_disk(functools.partial(method, context.workspace, *args, **kwargs), discard)
        if events.listeners and method.__name__ in _CHANGES:
            events.emit("file", context.id, {"operation": method.__name__, "path": _event_path(args)})
        return result

    def watch(self, path: AnyPath, recursive: bool) -> LocalWatch:
        self._context.operations.check_open()
        watch = LocalWatch(self._context.workspace.watch(path, recursive=recursive))
        with self._lock:
            self._watches.add(watch)
        self._context.operations.check_open()  # it may have been closed meanwhile, if this is a thread
        return watch

    async def close_watches(self) -> None:
        with self._lock:
            watches = tuple(self._watches)
        for watch in watches:
            await watch.aclose()


def _event_path(args: tuple[object, ...]) -> str | None:
    """The path of a call about one file; a patch and an archive name their own."""
    first = args[0] if args else None
    return os.fspath(first) if isinstance(first, str | os.PathLike) and "\n" not in str(first) else None


class LocalWatch:
    """File events for one reader.

    Unread events wait in the kernel, which bounds them. A recursive watch must add new directories in time, so there
    the event loop reads events as they arrive; their number is bounded too. What a guest causes takes at most half of
    the loop's time, a few milliseconds at once.
    """

    def __init__(self, watch: FileWatch) -> None:
        self._watch = watch
        self._waiting: asyncio.Future[None] | None = None
        #: The loop that has the descriptor registered or continues the work, if any.
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set while there is work left.
        self._next_slice: asyncio.TimerHandle | None = None
        if watch.is_recursive:
            with suppress(RuntimeError):  # no loop yet: the first `next` registers
                self._begin(asyncio.get_running_loop())

    async def begin(self) -> None:
        """The kernel has been watching since the constructor, which may have run in a thread."""
        if self._watch.is_recursive and not self._watch.is_closed:
            self._begin(running_loop())

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._register(loop)
        if self._watch.has_work and self._next_slice is None:  # of a very large tree, also before events are read
            self._gather(loop)

    async def next(self) -> FileEvent | None:
        """The next event, or None once the watch is closed."""
        while (event := self._watch.next_event()) is None and not self._watch.is_closed:
            loop = running_loop()
            if self._loop is not None and self._loop.is_closed():
                self._unregister()
            if self._next_slice is None:
                self._gather(loop)
                if self._watch.has_events or self._watch.is_closed:
                    continue
            self._register(loop)
            self._waiting = loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return event

    def _register(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
            # By weak reference: the loop must not keep a forgotten watch alive.
            loop.add_reader(self._watch.descriptor, _on_readable, weakref.ref(self), loop)

    def _unregister(self) -> None:
        loop, self._loop = self._loop, None
        timer, self._next_slice = self._next_slice, None
        if timer is not None:
            timer.cancel()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._watch.descriptor)

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Process what the guest caused; what is left, after a pause in which others have the loop."""
        has_more = self._watch.gather()
        if self._watch.is_over:
            self._end()
        elif has_more:
            self._unregister()
            self._loop = loop
            self._next_slice = loop.call_later(SLICE_SECONDS, _on_readable, weakref.ref(self), loop)

    def _on_readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the loop when there are records, or to continue."""
        if self._next_slice is not None:
            self._loop = self._next_slice = None
        self._gather(loop)
        if self._next_slice is None and not self._watch.is_closed:
            if self._watch.is_full or not self._watch.is_recursive:
                self._unregister()  # until the reader catches up: a guest must not keep this loop busy
            else:
                self._register(loop)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _end(self) -> None:
        self._unregister()
        self._watch.close()

    async def aclose(self) -> None:
        """Ends a pending `next` with None. May be called twice."""
        if not self._watch.is_closed:
            self._end()
        self._watch.forget()
        self._wake()

    def __del__(self) -> None:
        """Runs in any thread: the loop must release the descriptor before it is closed."""
        if self._loop is not None and not self._watch.is_closed:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(_release, self._loop, self._watch)


def _on_readable(watch: weakref.ref[LocalWatch], loop: asyncio.AbstractEventLoop) -> None:
    known = watch()
    if known is not None:
        known._on_readable(loop)


def _release(loop: asyncio.AbstractEventLoop, watch: FileWatch) -> None:
    loop.remove_reader(watch.descriptor)
    watch.close()


class LocalChanges:
    def __init__(self, context: SandboxContext) -> None:
        self._context = context

    @property
    def layer(self) -> ChangeLayer:
        self._context.operations.check_open()
        layer = self._context.layer
        if layer is None:
            hint = "make the sandbox with Sandbox(work_dir=..., changes='ask')"
            raise InvalidRequest("changes of this sandbox are not kept apart", field="changes", hint=hint)
        return layer

    async def list(self) -> list[Change]:
        return await self._context.on_disk(self.layer.changes)

    async def patch(self, paths: Sequence[str] | None) -> str:
        layer, wanted = self.layer, _check_paths("paths", paths)
        return await self._context.on_disk(lambda: layer.patch(wanted).decode("utf-8", "replace"))

    async def commit(self, paths: Sequence[str] | None, allow_flagged: Sequence[str], dry_run: bool) -> CommitReport:
        layer, wanted = self.layer, _check_paths("paths", paths)
        allowed = _check_paths("allow_flagged", allow_flagged) or ()
        merged = self._context.workspace.root
        return await self._context.on_disk(lambda: layer.commit(wanted, allowed, dry_run=bool(dry_run), merged=merged))

    async def discard(self, paths: Sequence[str] | None) -> None:
        layer, wanted = self.layer, _check_paths("paths", paths)
        await self._context.on_disk(lambda: layer.discard(wanted, self._context.workspace.root))

    async def keep(self) -> str:
        return await self._context.on_disk(self.layer.keep)


def _check_paths(field: str, paths: Sequence[str] | None) -> tuple[str, ...] | None:
    if paths is None:
        return None
    if isinstance(paths, str):
        raise InvalidRequest("must be a list of paths, not one path", field=field, hint=f"{field}=[{paths!r}]")
    for path in paths:
        if not isinstance(path, str) or "\0" in path:  # lone surrogates are bytes of names that are not UTF-8
            raise InvalidRequest(f"not a path: {path!r}", field=field)
    return tuple(paths)
