"""One of several processes behind a front: the whole server, on a socket that only the front reaches.

    python -m warmcell.interfaces.serve.front.worker NUMBER LISTENING CONTROL

Two descriptors: where it listens, and where it is told its settings and asks for places. It ends when the front does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

from warmcell.interfaces.serve.front.shared_queue import FrontQueue, messages, send
from warmcell.interfaces.serve.server import served
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings


def main(number: int, listening: int, control: int) -> int:
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s: worker {number}: %(message)s")
    for descriptor in (listening, control):
        os.set_inheritable(descriptor, False)
    with socket.socket(fileno=listening) as place, socket.socket(fileno=control) as front:
        asyncio.run(_served(number, place, front))
    return 0


async def _served(number: int, listening: socket.socket, control: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    told = anext(aiter(messages(reader)))
    service = Service(Settings(**await told), worker=number, queue=FrontQueue(writer))
    hearing = asyncio.ensure_future(_hear(reader, service.queue))
    send(writer, {"ready": True})
    try:
        await served(service, listening)
    finally:
        hearing.cancel()
        writer.close()


async def _hear(reader: asyncio.StreamReader, queue: object) -> None:
    assert isinstance(queue, FrontQueue)
    async for message in messages(reader):
        queue.hear(message)
    queue.close()
    os.kill(os.getpid(), signal.SIGTERM)  # nobody can reach us any more


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
