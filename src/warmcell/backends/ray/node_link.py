"""NodeLink: this program's end of one node. Everything here runs on the portal's loop."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from warmcell.backends.ray.direct_connection import Carrier, NodeSocket
from warmcell.backends.ray.node_service import SANDBOXES, TAKE_SECONDS
from warmcell.core.errors import BackendUnavailable, InvalidRequest, NodeLost, SandboxError
from warmcell.lifetime.threads import cancel_and_wait, wait_until_done

if TYPE_CHECKING:
    from warmcell.backends.ray.placement import NodeFacts, NodeInfo
    from warmcell.backends.ray.ray_nodes import RayTransport
    from warmcell.runner.listening import Listener

#: Messages in one call.
_MOST_MESSAGES = 256
#: For one call of the actor: a node that does not answer for so long is lost.
_ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 30.0
_LOOK_SECONDS = 0.005


class _Call:
    """A request that was sent, and the listener for its output."""

    __slots__ = ("answer", "carrier", "has_output", "listener", "owed")

    def __init__(self, listener: Listener | None) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.listener = listener
        self.has_output = False
        #: Bytes that were delivered and not acknowledged.
        self.owed = 0
        #: For messages of a tunnel.
        self.carrier: Carrier | None = None


class NodeLink:
    """One batch in each direction is on its way at a time; what accumulates meanwhile goes with the next, in order."""

    def __init__(
        self, info: NodeInfo, facts: NodeFacts, transport: RayTransport, on_lost: Callable[[NodeLink], object]
    ) -> None:
        self.info, self.facts = info, facts
        #: Runs and sandboxes that were placed here.
        self.running = self.sandboxes = 0
        self.batch_run_seconds: float | None = None
        self.lost: SandboxError | None = None
        #: Keys of the programs that the node has built.
        self.programs: set[str] = set()
        #: By digest: images that are on their way to the node.
        self.images: dict[str, asyncio.Future[None]] = {}
        self._transport, self._on_lost = transport, on_lost
        self._numbers = count(1)
        self._calls: dict[int, _Call] = {}
        self._outgoing: list[tuple[int, bytes]] = []
        self._has_outgoing = asyncio.Event()
        self._loops = [asyncio.ensure_future(self._guard(loop())) for loop in (self._send_all, self._receive_all)]
        self._tasks: set[asyncio.Task[None]] = set()
        #: By the name of the server: the socket here, and its start.
        self._sockets: dict[str, tuple[NodeSocket, asyncio.Task[None]]] = {}

    async def call(self, kind: str, *values: Any, listener: Listener | None = None) -> Any:
        """The node's answer. Cancelling it ends the request there before the cancellation is raised."""
        if self.lost is not None:
            raise self.lost
        number, call = next(self._numbers), _Call(listener)
        self._send(number, kind, *values)
        return await self._await_answer(number, call)

    def note_batch_run(self, seconds: float) -> None:
        """A run of a batch took so long on the node: how many wait there depends on it."""
        known = self.batch_run_seconds
        self.batch_run_seconds = seconds if known is None else known + (seconds - known) / 8

    async def _carry(self, server: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connects the two with the node's end of a tunnel, until that ends."""
        if self.lost is not None:
            raise self.lost
        number, call = next(self._numbers), _Call(None)
        call.carrier = Carrier(reader, writer, partial(self._send, number))
        self._send(number, "tunnel", server)
        carrying = asyncio.ensure_future(call.carrier.run())

        def end_tunnel(_: object) -> None:
            if not call.answer.done():  # the client is gone, and the node may wait for room in its window for ever
                self._send(number, "cancel")

        carrying.add_done_callback(end_tunnel)
        try:
            await self._await_answer(number, call)
        finally:
            await cancel_and_wait(carrying)

    async def socket_path(self, server: str = SANDBOXES) -> str:
        """A Unix socket of this host behind which is a server of the node. It exists as long as the link."""
        if self.lost is not None:
            raise self.lost
        if server not in self._sockets:
            made = NodeSocket(partial(self._carry, server))
            self._sockets[server] = (made, asyncio.ensure_future(made.listen()))
        entry = found, listening = self._sockets[server]
        try:
            await asyncio.shield(listening)
        except OSError:
            if self._sockets.get(server) is entry:  # the next caller tries again
                del self._sockets[server]
                found.close()
            raise
        return found.path

    async def _await_answer(self, number: int, call: _Call) -> Any:
        self._calls[number] = call
        try:
            return await asyncio.shield(call.answer)
        except asyncio.CancelledError:
            if not call.answer.done():
                self._send(number, "cancel")
            await wait_until_done(call.answer)  # the link ends if the node does not answer, and every answer with it
            raise
        except NodeLost as error:
            error.has_output = call.has_output
            raise
        finally:
            self._calls.pop(number, None)

    def release_program(self, key: str) -> None:
        """Also of one that is not among `programs`: the node may have built it for a run that failed."""
        self.programs.discard(key)
        if self.lost is None:
            self._send(0, "release", key)

    def lose(self, reason: str) -> None:
        """The node is gone: every request on it fails."""
        if self.lost is None:
            self._end(NodeLost(self.info.id, reason))
            self._on_lost(self)

    async def close(self, error: SandboxError) -> None:
        """Ends what runs there, which raises `error`, and then the actor."""
        if self.lost is None:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._transport.close()
        self._end(error)

    def _end(self, error: SandboxError) -> None:
        if self.lost is None:
            self.lost = error
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(copy(error))  # one for each call: their tracebacks differ
        for task in (*self._loops, *self._tasks):
            task.cancel()
        for one, listening in self._sockets.values():
            listening.cancel()
            one.close()
        self._transport.kill()

    # ---- messages ----

    def _send(self, number: int, kind: str, *values: Any) -> None:
        """Raises here, and not where the batch is sent, if it has something that only this process can have."""
        self._outgoing.append((number, _dump(kind, *values)))
        self._has_outgoing.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that ends with the link."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, loop: Any) -> None:
        try:
            await loop
        except Exception as error:  # whatever it is, no answer would ever arrive
            self.lose(str(error) or "it does not answer")

    async def _send_all(self) -> None:
        while True:
            await self._has_outgoing.wait()
            batch, self._outgoing = self._outgoing[:_MOST_MESSAGES], self._outgoing[_MOST_MESSAGES:]
            if not self._outgoing:
                self._has_outgoing.clear()
            payload = pickle.dumps(batch)  # one value: Ray serialises each argument of a call by itself
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._transport.submit(payload)

    async def _receive_all(self) -> None:
        while True:
            async with asyncio.timeout(TAKE_SECONDS + _ANSWER_SECONDS):
                payload = await self._transport.take()
            for message in pickle.loads(payload):  # noqa: S301  # of our own actor
                self._receive_message(message)

    def _receive_message(self, message: bytes) -> None:
        number, kind, *values = pickle.loads(message)  # noqa: S301  # of our own actor
        call = self._calls.get(number)
        if call is None or call.answer.done():
            return
        if kind == "done":
            call.answer.set_result(*values)
        elif kind == "failed":
            self._take_error(call, *values)
        elif kind == "output":
            self._take_output(number, call, *values)
        elif call.carrier is not None:
            call.carrier.receive(kind, *values)

    def _take_error(self, call: _Call, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):  # a caller that cancelled sees its own cancellation
            call.answer.set_exception(BackendUnavailable("the run was ended on its node"))
        elif isinstance(error, SandboxError) and error.fault == "host":
            self._start(self._guard(self._confirm_error(call, error)))
        else:
            call.answer.set_exception(error)

    async def _confirm_error(self, call: _Call, error: SandboxError) -> None:
        """On a node that is dying, cages fail before the actor is gone: its runs were lost with it."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            await self._transport.check()
        if not call.answer.done():
            call.answer.set_exception(error)

    def _take_output(self, number: int, call: _Call, stream: Any, data: bytes) -> None:
        call.has_output = True
        if call.listener is None:
            return
        try:
            call.listener.deliver(stream, data)
        except Exception as error:  # of the listener: it ends the run and is its caller's
            call.answer.set_exception(error)
            self._send(number, "cancel")
            return
        call.owed += len(data)
        if call.owed == len(data):
            self._start(self._acknowledge(number, call))

    async def _acknowledge(self, number: int, call: _Call) -> None:
        """Lets the guest write on when the reader has caught up. Looks now and then: its descriptor is for threads."""
        while number in self._calls and call.listener is not None and call.listener.wait_target() is not None:
            await asyncio.sleep(_LOOK_SECONDS)
        owed, call.owed = call.owed, 0
        self._send(number, "credit", owed)


def _dump(kind: str, *values: Any) -> bytes:
    try:
        return pickle.dumps((kind, *values))
    except Exception as error:
        raise InvalidRequest(f"cannot be sent to a node of the cluster: {error}", field=kind) from None
