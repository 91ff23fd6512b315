"""The host's end of the talk with the agent of a live cage: requests, their answers, and the ends that it tells of."""

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
from warmcell.lifetime.descriptors import Descriptors
from warmcell.sessions.frames import Decoder, FrameError, encode
from warmcell.sessions.loop import READ, WRITE, Loop

Message = dict[str, Any]
#: What an agent has to say is short; reading long things takes the time and memory of everybody here.
_MOST_HEARD = 16 * 1024


class ConversationOver(Exception):
    """The agent is gone, or something took its place that does not keep to the protocol."""


@dataclass(slots=True)
class _Outgoing:
    """What is still to be sent; descriptors go with its first byte."""

    data: memoryview
    descriptors: list[int]
    copies: Descriptors


class Conversation:
    """Lives in the loop of its cage; `ask` may be called by anybody.

    `on_event` hears what the agent tells unasked; `on_over`, once, why there is nothing more to hear. Descriptors go to
    the agent and never come from it: the host receives without room for any.
    """

    def __init__(
        self,
        loop: Loop,
        control: socket.socket,
        on_event: Callable[[Message], None],
        on_over: Callable[[str], None],
    ) -> None:
        self._loop, self._control = loop, control
        self._on_event, self._on_over = on_event, on_over
        self._decoder = Decoder(_MOST_HEARD)
        self._numbers = count(1)
        self._waiting: dict[int, tuple[Future[Message], Callable[[Message], None] | None]] = {}
        self._outgoing: list[_Outgoing] = []
        self._is_over = False
        # What is to be sent and who waits for what. Reentrant: collecting garbage may ask for something, too.
        self._lock = threading.RLock()
        #: What the loop listens for.
        self._events = 0
        control.setblocking(False)
        self._listen()

    def ask(
        self,
        op: str,
        descriptors: Sequence[int] = (),
        on_answer: Callable[[Message], None] | None = None,
        **fields: Any,
    ) -> Future[Message]:
        """The answer, or `ConversationOver`. The agent gets copies of the descriptors, which the caller may close now.

        Copies, because a caller may give up before the loop has sent them, and a number may then be anything else.
        `on_answer` sees it first, in the loop's thread, before anything else that the agent says.
        """
        number = next(self._numbers)
        frame = encode({"id": number, "op": op, "descriptors": len(descriptors), **fields})
        answer: Future[Message] = Future()
        answer.set_running_or_notify_cancel()  # so that nobody can cancel it behind the loop's back
        with Descriptors() as copies:
            numbers = [copies.opened(partial(os.dup, descriptor)) for descriptor in descriptors]
        # In a fork the loop is over, and the lock may be somebody's who is not there.
        if self._loop.is_over or not self._sent(
            number, _Outgoing(memoryview(frame), numbers, copies), answer, on_answer
        ):
            copies.close()
            answer.set_exception(ConversationOver("the live cage has ended"))
        return answer

    def _sent(
        self,
        number: int,
        outgoing: _Outgoing,
        answer: Future[Message],
        on_answer: Callable[[Message], None] | None,
    ) -> bool:
        """By whoever asks: waking the loop takes half as long as the answer does. What does not fit, the loop sends."""
        with self._lock:
            if self._is_over:
                return False
            self._waiting[number] = (answer, on_answer)
            self._outgoing.append(outgoing)
            with suppress(OSError):  # full, or over: the loop finds out
                if len(self._outgoing) == 1:  # else others are before it
                    self._send_some()
            if self._outgoing:
                self._loop.call(self._flush)
            return True

    def _listen(self) -> None:
        events = READ | (WRITE if self._outgoing else 0)
        if events != self._events:
            self._events = events
            self._loop.watch(self._control.fileno(), events, self._converse)

    def _converse(self) -> None:
        if self._outgoing:
            self._flush()
        if not self._is_over:
            self._listen()  # what waited here may have been another thread's, who has sent it by now
            self._hear()

    def _flush(self) -> None:
        if self._is_over:
            return
        try:
            with self._lock:
                while self._outgoing:
                    self._send_some()
        except BlockingIOError:
            pass
        except OSError:
            self.end("")
            return
        self._listen()

    def _send_some(self) -> None:
        first = self._outgoing[0]
        descriptors = array.array("i", first.descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        sent = self._control.sendmsg([first.data], rights, socket.MSG_NOSIGNAL)
        first.data, first.descriptors = first.data[sent:], []
        first.copies.close()
        if not first.data:
            self._outgoing.pop(0)

    def _hear(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.hear_bytes(data)
        else:
            self.end("")

    def hear_bytes(self, data: bytes) -> None:
        """What came, from whomever."""
        try:
            messages = self._decoder.feed(data)
        except FrameError as error:
            self.end(f"its agent sent {error}")
            return
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        if self._is_over:
            return
        number = message.get("id")
        if number is None:
            self._on_event(message)
            return
        waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
        if waiting is None:
            self.end("an answer that nobody asked for")
            return
        answer, on_answer = waiting
        if on_answer is not None:
            on_answer(message)
        answer.set_result(message)

    def end(self, reason: str) -> None:
        """In the loop's thread; everybody who waits is told. No reason: the other end is gone, and others know why."""
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
            answer.set_exception(ConversationOver(reason or "the live cage has ended"))
        self._on_over(reason)
