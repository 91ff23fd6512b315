"""A worker behind a front: the whole server. The front passes connections of clients to it.

    python -m warmcell.interfaces.serve.front.worker NUMBER LISTENING CONTROL CHANNEL STATES COUNTS

The last five are descriptors: a socket for requests that other processes relay, a connection for settings, queue slots
and admission, one over which client connections come, the memory with their states, and that with the numbers of
sandboxes. It exits when the front does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import ExitStack
from functools import partial

from starlette.middleware import Middleware

from warmcell.interfaces.serve.front.admission import FrontAdmission
from warmcell.interfaces.serve.front.client_sockets import RelayedProtocol
from warmcell.interfaces.serve.front.connection_states import ConnectionStates
from warmcell.interfaces.serve.front.control import Control, Message, open_control
from warmcell.interfaces.serve.front.dispatcher import Dispatcher, Neighbours, Receiver
from warmcell.interfaces.serve.front.shared_counts import SharedCounts, SharedQuota
from warmcell.interfaces.serve.front.shared_queue import FrontQueue
from warmcell.interfaces.serve.front.socket_relay import make_socket_protocol
from warmcell.interfaces.serve.listener import find_websocket_protocol
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.server import configure_logging, serve_app
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.lifetime.host_program import share_machine
from warmcell.observe.audit import AuditLog


def main(number: int, *descriptors: int) -> int:
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    *sockets, states, counts = descriptors
    share_machine()
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(fileno=descriptor)) for descriptor in sockets]
        asyncio.run(_serve(number, ConnectionStates(states), SharedCounts(counts), *opened))
    return 0


async def _serve(
    number: int,
    states: ConnectionStates,
    counts: SharedCounts,
    listening: socket.socket,
    control: socket.socket,
    channel: socket.socket,
) -> None:
    front = await open_control(control)
    settings = Settings(**await front.first)
    configure_logging(settings.log_level, settings.log_format, f"worker {number}: ")
    audit = None if settings.audit is None else AuditLog(settings.audit)
    queue, admission = FrontQueue(front), FrontAdmission(front)
    make_quota = TenantQuota if settings.tokens is not None else partial(SharedQuota, counts, number)
    service = Service(settings, worker=number, queue=queue, make_quota=make_quota)
    neighbours = Neighbours(os.path.dirname(listening.getsockname()), settings.workers)
    dispatcher = Dispatcher(service, number, neighbours, admission)
    receiver = Receiver(service, channel, states, front)
    local = find_websocket_protocol()
    options = {
        "http": RelayedProtocol,
        "ws": local if local == "none" else partial(make_socket_protocol, dispatcher.choose_for_socket, local),
        "counts_connections": False,  # the front does
        "on_started": receiver.start,
    }
    front.handle = partial(_handle_message, queue, admission)
    watching = asyncio.ensure_future(_exit_with_front(front, queue, admission))
    try:
        await serve_app(service, listening, [Middleware(dispatcher.around)], **options)
    finally:
        watching.cancel()
        receiver.close()
        front.close()
        if audit is not None:
            audit.close()


def _handle_message(queue: FrontQueue, admission: FrontAdmission, message: Message) -> None:
    (admission if "entered" in message or "refused" in message else queue).handle(message)


async def _exit_with_front(front: Control, queue: FrontQueue, admission: FrontAdmission) -> None:
    await front.closed.wait()
    queue.close()
    admission.close()
    os.kill(os.getpid(), signal.SIGTERM)  # no client can reach this process any more


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:7])))
