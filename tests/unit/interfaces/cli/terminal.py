"""A person's terminal, played by a pty of the test's."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

#: Code for a `Terminal`: `warmcell` that waits a minute for each reply, since the test that sends it may stand still.
PATIENT = """
from warmcell.interfaces.cli import interactive_shell, main

interactive_shell._REPLY_SECONDS = interactive_shell._ALL_REPLIES_SECONDS = 60.0
main()
"""


class Terminal:
    """A pseudo-terminal of 90 x 30 with a command in it: type into it and read its screen.

    `code`: what Python runs in place of `-m warmcell`.
    """

    def __init__(self, *arguments: str, code: str | None = None) -> None:
        self.screen, theirs = pty.openpty()
        self.resize(90, 30)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        program = ["-m", "warmcell"] if code is None else ["-c", code]
        command = [sys.executable, *program, *arguments]
        env = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True, preexec_fn=self._own
        )
        self.seen = b""

    def _own(self) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def until(self, text: str, seconds: float = 60) -> str:
        """What was shown from the last look up to that text."""
        deadline = time.monotonic() + seconds
        os.set_blocking(self.screen, False)
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen
            try:
                self.seen += os.read(self.screen, 65536)
            except BlockingIOError:
                time.sleep(0.01)
        shown, _, self.seen = self.seen.partition(text.encode())
        return shown.decode()

    def wait(self) -> int:
        """As a terminal does, it answers when it is asked for the place of the cursor."""
        self.type(self.answers())
        return self.process.wait(30)

    def answers(self) -> str:
        """To the questions that end with the shell, once they were asked."""
        self.until("\x1b[0m\x1b7")
        columns = re.findall(r"\x1b\[(\d+)G\x1b\[6n", self.until("\x1b8"))
        return "".join(f"\x1b[1;{column}R" for column in columns)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self.theirs)
