"""A session worker's side of the protocol: frames over one socket, and interrupts that never split one.

The host checks what it receives; this side ensures that only the worker writes: not a process that the guest forked,
and not a thread in the middle of another's frame.
"""

import _signal  # `signal` makes enums of everything, which takes longer than the rest of a small cell
import os
import select
import threading
from _thread import get_ident

from . import frames

#: Longer texts go in pieces: a frame has at most 1 MiB, and JSON may take twelve bytes for a character.
PIECE = 64 * 1024


class Interrupts:
    """SIGINT raises KeyboardInterrupt in guest code, is held while a frame is sent, and is ignored between cells.

    The host repeats it until the cell ends, because a call that blocks just after it has arrived does not notice it. A
    repetition must not disturb what the cell does about the first KeyboardInterrupt.
    """

    def __init__(self, is_announced):
        #: Whether the host has sent the message that comes before its signals.
        self._is_announced = is_announced
        self.is_allowed = False
        self._has_raised = False
        self._held = 0
        self._is_waiting = False
        self._owner = os.getpid()
        self._main = threading.main_thread().ident

    def install(self):
        """Called before every cell, because the last one may have changed the handler."""
        if _signal.getsignal(_signal.SIGINT) != self._handle_signal:
            _signal.signal(_signal.SIGINT, self._handle_signal)

    def allow(self):
        self._is_waiting = self._has_raised = False
        self.is_allowed = True

    def _handle_signal(self, number, frame):
        if os.getpid() != self._owner:
            raise KeyboardInterrupt
        if self._held:
            self._is_waiting = True
        elif self.is_allowed:
            self._interrupt()

    def _interrupt(self):
        is_announced = self._is_announced()
        if not (is_announced and self._has_raised):
            self._has_raised = is_announced
            raise KeyboardInterrupt

    def __enter__(self):
        if get_ident() == self._main:
            self._held += 1

    def __exit__(self, *_):
        if get_ident() != self._main:
            return
        self._held -= 1
        if self._is_waiting and not self._held and self.is_allowed:
            self._is_waiting = False
            self._interrupt()


class Channel:
    """Frames to and from the host. Any thread of the worker may send; only the main one receives."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.interrupts = Interrupts(self._has_announcement)
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._asked = 0
        self._decoder = frames.Decoder(frames.MOST_SENT)
        self._messages = []
        self._was_announced = False
        self._ready, self._arrived = select.poll(), select.poll()  # a handler must not use the one in progress
        for poll in (self._ready, self._arrived):
            poll.register(descriptor, select.POLLIN)
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=self._leave)

    @property
    def is_ours(self):
        """False in a process that the guest forked."""
        return os.getpid() == self._owner

    def _leave(self):
        try:
            os.close(self.descriptor)
        except OSError:
            pass  # the guest has closed it

    def send(self, **message):
        self._send_frame(frames.encode(message))

    def send_text(self, text):
        """Sends text that already is JSON."""
        self._send_frame(frames.frame_text(text))

    def _send_frame(self, frame):
        with self.interrupts, self._lock:
            if self.is_ours:
                self._write(frame)

    def _write(self, data):
        while written := os.write(self.descriptor, data):
            if written == len(data):
                return
            data = memoryview(data)[written:]

    def receive(self):
        """The next message from the host. The wait can be interrupted, the read cannot."""
        pieces = []
        while True:
            while not self._messages:
                self._read()
            message = self._messages.pop(0)
            if message["op"] == "piece":
                pieces.append(message["text"])
            else:
                break
        if pieces:
            message["code"] = "".join([*pieces, message["code"]])
        return message

    def check_interrupted(self, cell):
        """Raises if the host interrupted this cell before it started: the signal itself was ignored then."""
        self._was_announced = False
        if self.was_interrupted(cell):
            raise KeyboardInterrupt

    def was_interrupted(self, cell):
        """Whether the next message of the host, if there is one, interrupts this cell."""
        if self._messages or self._ready.poll(0):
            message = self.receive()
            return message["op"] == "interrupt" and message["cell"] == cell
        return False

    def _has_announcement(self):
        """Whether the host may have interrupted the running cell: otherwise it sends answers only."""
        return bool(self._was_announced or self._messages or self._arrived.poll(0))

    def _read(self):
        if self.interrupts.is_allowed:
            self._ready.poll()
        with self.interrupts:
            data = os.read(self.descriptor, 1 << 16)
            if not data:
                os._exit(0)  # the host is gone
            self._messages += self._decoder.feed(data)

    def ask(self, prompt):
        """A line of input from the caller, or None."""
        if not self.is_ours or threading.current_thread() is not threading.main_thread():
            return None
        self._asked += 1
        self.send(event="input", ask=self._asked, prompt=prompt[:PIECE])
        while True:
            answer = self.receive()
            self._was_announced |= answer["op"] == "interrupt"
            # An answer to a question of an earlier, interrupted cell may still arrive.
            if answer.get("op") == "input" and answer.get("ask") == self._asked:
                return answer.get("text")
