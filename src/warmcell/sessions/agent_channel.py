"""The host's end of the channel to the agent of a live cage: requests, answers and events."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from warmcell.core.records import dataclass
from warmcell.guest.live.frames import Decoder, FrameError, encode
from warmcell.lifetime.descriptors import Descriptors, is_shortage
from warmcell.sessions.loop import READ, WRITE, Loop

Message = dict[str, Any]
#: Messages of an agent are short; long ones would take time and memory from other sandboxes.
_MOST_RECEIVED = 16 * 1024
#: When to send again what the kernel refused for a moment, such as more descriptors in flight than the user may have.
_SHORTAGE_SECONDS = 0.01


class ChannelClosed(Exception):
    """The agent exited or violated the protocol."""


@dataclass(slots=True)
class _Outgoing:
    """A message to send; descriptors go with its first byte."""

    data: memoryview
    descriptors: list[int]
    copies: Descriptors


class AgentChannel:
    """Runs in the loop of its cage; `ask` may be called from any thread.

    `on_event` gets the agent's unsolicited messages; `on_over` is called once, with the reason for the end. Descriptors
    are only ever sent to the agent: the host receives with no room for any.
    """

    def __init__(
        self, loop: Loop, control: socket.socket, on_event: Callable[[Message], None], on_over: Callable[[str], None]
    ) -> None:
        self._loop, self._control = loop, control
        self._on_event, self._on_over = on_event, on_over
        self._decoder = Decoder(_MOST_RECEIVED)
        self._numbers = count(1)
        self._waiting: dict[int, tuple[Future[Message], Callable[[Message], None] | None]] = {}
        self._outgoing: list[_Outgoing] = []
        self._is_over = self._is_paused = False
        # Guards outgoing messages and pending answers. Reentrant: a garbage collection may send a request, too.
        self._lock = threading.RLock()
        #: The registered poll events.
        self._events = 0
        control.setblocking(False)
        self._watch()

    @property
    def is_awaited(self) -> bool:
        """Whether the agent has not yet answered all requests."""
        return bool(self._waiting)

    def ask(
        self,
        op: str,
        descriptors: Sequence[int] = (),
        on_answer: Callable[[Message], None] | None = None,
        **fields: Any,
    ) -> Future[Message]:
        """The answer, or `ChannelClosed`. The agent gets copies of the descriptors, which the caller may close now.

        Copies, because a caller may give up and reuse the numbers before the loop has sent them. `on_answer` is called
        first, in the loop's thread, before any later message is handled.
        """
        number = next(self._numbers)
        frame = encode({"id": number, "op": op, "descriptors": len(descriptors), **fields})
        answer: Future[Message] = Future()
        answer.set_running_or_notify_cancel()  # callers cannot cancel it behind the loop's back
        with Descriptors() as copies:
            numbers = [copies.open(partial(os.dup, descriptor)) for descriptor in descriptors]
        # In a fork the loop is over, and the lock may be held by a thread that does not exist.
        if self._loop.is_over or not self._enqueue(
            number, _Outgoing(memoryview(frame), numbers, copies), answer, on_answer
        ):
            copies.close()
            answer.set_exception(ChannelClosed("the live cage has ended"))
        return answer

    def _enqueue(
        self, number: int, outgoing: _Outgoing, answer: Future[Message], on_answer: Callable[[Message], None] | None
    ) -> bool:
        """Sends from the calling thread, since waking the loop takes long. The loop sends what does not fit."""
        with self._lock:
            if self._is_over:
                return False
            self._waiting[number] = (answer, on_answer)
            self._outgoing.append(outgoing)
            with suppress(OSError):  # full or closed: the loop finds out
                if len(self._outgoing) == 1:  # otherwise earlier messages are pending
                    self._send_some()
            if self._outgoing:
                self._loop.call(self._flush)
            return True

    def _watch(self) -> None:
        events = READ | (WRITE if self._outgoing and not self._is_paused else 0)
        if events != self._events:
            self._events = events
            self._loop.watch(self._control.fileno(), events, self._on_ready)

    def _on_ready(self) -> None:
        if self._outgoing and not self._is_paused:
            self._flush()
        if not self._is_over:
            self._watch()  # another thread may have sent what was pending
            self._receive()

    def _flush(self) -> None:
        if self._is_over:
            return
        try:
            with self._lock:
                while self._outgoing:
                    self._send_some()
        except BlockingIOError:
            pass
        except OSError as error:
            if not is_shortage(error):
                self.end("")
                return
            if not self._is_paused:
                self._is_paused = True
                self._loop.call_later(_SHORTAGE_SECONDS, self._resume)
        self._watch()

    def _resume(self) -> None:
        self._is_paused = False
        self._flush()

    def _send_some(self) -> None:
        first = self._outgoing[0]
        descriptors = array.array("i", first.descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        sent = self._control.sendmsg([first.data], rights, socket.MSG_NOSIGNAL)
        first.data, first.descriptors = first.data[sent:], []
        first.copies.close()
        if not first.data:
            self._outgoing.pop(0)

    def _receive(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.feed(data)
        else:
            self.end("")

    def feed(self, data: bytes) -> None:
        """Handles received bytes. Any process in the cage may have sent them."""
        try:
            messages = self._decoder.feed(data)
        except FrameError as error:
            self.end(f"its agent sent {error}")
            return
        for message in messages:
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        if self._is_over:
            return
        number = message.get("id")
        if number is None:
            self._on_event(message)
            return
        waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
        if waiting is None:
            self.end("its agent answered a request that was never sent")
            return
        answer, on_answer = waiting
        if on_answer is not None:
            on_answer(message)
        answer.set_result(message)

    def end(self, reason: str) -> None:
        """In the loop's thread: fails all pending requests. An empty reason means that the peer closed the channel."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            outgoing, self._outgoing = self._outgoing, []
            waiting, self._waiting = self._waiting, {}
        self._loop.forget(self._control.fileno())
        for unsent in outgoing:
            unsent.copies.close()
        for answer, _ in waiting.values():
            answer.set_exception(ChannelClosed(reason or "the live cage has ended"))
        self._on_over(reason)
