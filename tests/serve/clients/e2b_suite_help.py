"""What the tests that e2b_suite_async.py derives call instead of a plain call, loop or `with`.

Where the asynchronous SDK takes a callback and the synchronous one returns an object, the events of the callback are
kept here and returned as the synchronous SDK would return them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from e2b import AsyncCommandHandle

QUIET = 0.5  # seconds without another event, after which no more are expected
_queues: WeakKeyDictionary[AsyncCommandHandle, asyncio.Queue[Any]] = WeakKeyDictionary()


async def call(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """The result, awaited where it can be."""
    adapted = ADAPTED.get(getattr(function, "__qualname__", ""))
    if adapted is not None:
        return await adapted(function, *args, **named)
    if inspect.isbuiltin(function):
        args = tuple([await _collect(arg, function is iter) for arg in args])
    result = function(*args, **named)
    return await result if inspect.isawaitable(result) else result


def closing(thing: Any) -> Any:
    return getattr(thing, "aclose", None) or thing.close


async def each(things: Any) -> AsyncIterator[Any]:
    if isinstance(things, AsyncCommandHandle):
        things = _read_output(things)
    if hasattr(things, "__aiter__"):
        async for thing in things:
            yield thing
    else:
        for thing in things:
            yield thing


@asynccontextmanager
async def enter(manager: Any) -> AsyncIterator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


async def _collect(value: Any, is_first_enough: bool) -> Any:
    if not hasattr(value, "__anext__"):
        return value
    return [await anext(value)] if is_first_enough else [chunk async for chunk in value]


async def _run(run: Callable[..., Any], *args: Any, **named: Any) -> Any:
    if not named.get("background"):
        return await run(*args, **named)
    queue: asyncio.Queue[Any] = asyncio.Queue()
    named.setdefault("on_stdout", lambda text: queue.put_nowait((text, None, None)))
    named.setdefault("on_stderr", lambda text: queue.put_nowait((None, text, None)))
    handle = await run(*args, **named)
    _queues[handle] = queue
    return handle


async def _terminal(create: Callable[..., Any], *args: Any, **named: Any) -> Any:
    queue: asyncio.Queue[Any] = asyncio.Queue()
    handle = await create(*args, on_data=queue.put_nowait, **named)
    _queues[handle] = queue
    return handle


async def _wait(wait: Any, on_pty: Callable[[bytes], Any] | None = None, **named: Any) -> Any:
    result = await wait(**named)
    queue = _queues.get(wait.__self__)
    while on_pty is not None and queue is not None and not queue.empty():
        on_pty(queue.get_nowait())
    return result


async def _read_output(handle: AsyncCommandHandle) -> AsyncIterator[Any]:
    """What the process says as it says it; at its end its error, if it had one."""
    queue, ended = _queues[handle], asyncio.ensure_future(handle.wait())
    while True:
        said = asyncio.ensure_future(queue.get())
        await asyncio.wait([said, ended], return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            said.cancel()
            await ended
            return
        yield said.result()


class Watched:
    def __init__(self, queue: asyncio.Queue[Any]) -> None:
        self.queue = queue
        self.handle: Any = None

    async def get_new_events(self) -> list[Any]:
        """Those that come until there is a pause; the synchronous SDK asks, and has them at once."""
        events = [await asyncio.wait_for(self.queue.get(), 20)]
        while True:
            try:
                events.append(await asyncio.wait_for(self.queue.get(), QUIET))
            except TimeoutError:
                return events

    async def stop(self) -> None:
        await self.handle.stop()


async def _watch(watch_dir: Callable[..., Any], *args: Any, **named: Any) -> Watched:
    watched = Watched(asyncio.Queue())
    watched.handle = await watch_dir(*args, on_event=watched.queue.put_nowait, **named)
    return watched


async def _set_attribute(set_attribute: Callable[..., Any], target: Any, name: str, value: Any) -> None:
    """A stand-in for a function of the generated client replaces the asynchronous one."""
    if name != "sync_detailed":
        return set_attribute(target, name, value)

    async def stand_in(*args: Any, **named: Any) -> Any:
        return value(*args, **named)

    return set_attribute(target, "asyncio_detailed", stand_in)


ADAPTED: dict[str, Callable[..., Any]] = {
    "Commands.run": _run,
    "Pty.create": _terminal,
    "Pty.connect": _terminal,
    "AsyncCommandHandle.wait": _wait,
    "Filesystem.watch_dir": _watch,
    "MonkeyPatch.setattr": _set_attribute,
}
