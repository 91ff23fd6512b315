"""The two directions of `attach` and `exec` on a connection that the client has taken over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from warmcell.core.errors import SandboxError
from warmcell.interfaces.docker.messages import RawStream
from warmcell.interfaces.docker.output_log import frame
from warmcell.sandbox.local.process import LocalProcess

#: How long a program may take to read the last input of a client that is gone.
_LAST_INPUT_SECONDS = 5.0
MULTIPLEXED, RAW = "application/vnd.docker.multiplexed-stream", "application/vnd.docker.raw-stream"


def content_type(has_tty: bool) -> str:
    return RAW if has_tty else MULTIPLEXED


def encode(stream: str, data: bytes, has_tty: bool) -> bytes:
    """A terminal has one stream, so it needs no frames."""
    return data if has_tty else frame(stream, data)


async def copy_streams(
    raw: RawStream,
    output: AsyncIterator[tuple[str, bytes]],
    process: LocalProcess,
    *,
    has_tty: bool,
    is_input: bool,
    closes_input: bool,
) -> None:
    """Until the output ends or the client goes away. The program continues in either case."""

    async def send() -> None:
        async for stream, data in output:
            await raw.write(encode(stream, data, has_tty))

    feeding = asyncio.ensure_future(_feed(raw, process, is_input, closes_input))
    sending = asyncio.ensure_future(send())
    # While the program does not read its input, `_feed` does not see that the client is gone.
    watching = asyncio.ensure_future(raw.wait_for_hangup())
    tasks = {feeding, sending, watching}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await asyncio.wait({feeding}, timeout=_LAST_INPUT_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # the client is gone, or the container has ended


async def _feed(raw: RawStream, process: LocalProcess, is_input: bool, closes_input: bool) -> None:
    """Returns when the client is gone; a client that only has no more input still reads."""
    while data := await raw.read():
        if is_input:
            try:
                await process.write(data)
            except SandboxError:
                is_input = False  # the program no longer reads
    if is_input and closes_input:
        await process.close_stdin()
    await raw.wait_for_hangup()
