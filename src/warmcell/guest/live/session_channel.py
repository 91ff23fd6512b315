"""A session worker's side of the conversation: frames over one socket, and interrupts that never cut one in half.

A frame is four bytes of length and JSON. The host decides what to believe; here it matters only that nobody but the
worker itself speaks: not a process that the guest forked, and not a thread in the middle of another's frame.
"""

import _signal  # `signal` makes enums of everything, which takes longer than the rest of a small cell
import json
import os
import select
import struct
import threading
from _thread import get_ident

_LENGTH = struct.Struct(">I")
#: Made once: `dumps` and `loads` look at every argument that they might have had.
_TEXT_OF = json.JSONEncoder(separators=(",", ":")).encode
_CONTENT_OF = json.JSONDecoder().raw_decode
#: Longer texts go in pieces: a frame has at most 1 MiB, and JSON may take twelve bytes for a character.
PIECE = 64 * 1024


class Interrupts:
    """SIGINT: raised where the guest's code runs, kept until the end of a frame, and nothing at all between cells."""

    def __init__(self):
        self.is_allowed = False
        self._held = 0
        self._is_waiting = False
        self._owner = os.getpid()
        self._main = threading.main_thread().ident

    def install(self):
        """Before every cell: the last one may have set its own handler, or none."""
        if _signal.getsignal(_signal.SIGINT) != self._hear:
            _signal.signal(_signal.SIGINT, self._hear)

    def allow(self):
        self._is_waiting = False
        self.is_allowed = True

    def forbid(self):
        self.is_allowed = False

    def _hear(self, number, frame):
        if os.getpid() != self._owner:
            raise KeyboardInterrupt
        if self._held:
            self._is_waiting = True
        elif self.is_allowed:
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
            raise KeyboardInterrupt


class Channel:
    """Frames to and from the host. Any thread of the worker may send; only the main one receives."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.interrupts = Interrupts()
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._asked = 0
        self._buffer = bytearray()
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLIN)
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=self._leave)

    @property
    def is_ours(self):
        """False in a process that the guest forked, whichever way it did."""
        return os.getpid() == self._owner

    def _leave(self):
        try:
            os.close(self.descriptor)
        except OSError:
            pass  # the guest closed it before

    def send(self, **message):
        self.send_text(_TEXT_OF(message))

    def send_text(self, text):
        """JSON, as somebody has written it who knew what was in it."""
        data = text.encode()
        with self.interrupts, self._lock:
            if self.is_ours:
                self._write(_LENGTH.pack(len(data)) + data)

    def _write(self, data):
        while written := os.write(self.descriptor, data):
            if written == len(data):
                return
            data = memoryview(data)[written:]

    def receive(self):
        """The next message of the host. Waiting for it can be interrupted, reading it cannot."""
        pieces = []
        while True:
            message = self._taken()
            if message is None:
                self._read()
            elif message["op"] == "piece":
                pieces.append(message["text"])
            else:
                break
        if pieces:
            message["code"] = "".join([*pieces, message["code"]])
        return message

    def check_interrupted(self, cell):
        """A signal that came before the cell could hear it was ignored; the host said first which cell it meant."""
        if self._buffer or self._ready.poll(0):
            message = self.receive()
            if message["op"] == "interrupt" and message["cell"] == cell:
                raise KeyboardInterrupt

    def _taken(self):
        """A message that is there as a whole, or None."""
        if len(self._buffer) < 4:
            return None
        end = 4 + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message, _ = _CONTENT_OF(self._buffer[4:end].decode())
        del self._buffer[:end]
        return message

    def _read(self):
        if self.interrupts.is_allowed:
            self._ready.poll()
        with self.interrupts:
            data = os.read(self.descriptor, 1 << 16)
            if not data:
                os._exit(0)  # the host is gone
            self._buffer += data

    def ask(self, prompt):
        """A line from whoever called the session, or None."""
        if not self.is_ours or threading.current_thread() is not threading.main_thread():
            return None
        self._asked += 1
        self.send(event="input", ask=self._asked, prompt=prompt[:PIECE])
        while True:
            answer = self.receive()
            # What was asked by a cell that has been interrupted since may still be answered.
            if answer.get("op") == "input" and answer.get("ask") == self._asked:
                return answer.get("text")
