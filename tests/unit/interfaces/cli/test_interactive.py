"""`warmcell shell`: a person's terminal, played by a pty of the test's."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


class Terminal:
    """A person at a terminal of 90 x 30, who types and looks."""

    def __init__(self, *arguments: str) -> None:
        self.screen, theirs = pty.openpty()
        self.resize(90, 30)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        command = [sys.executable, "-m", "warmcell", "shell", *arguments]
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

    def ended(self) -> int:
        """As a terminal does, it answers when it is asked whether it is there."""
        self.until("\x1b[5n")
        self.type("\x1b[0n")
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self.theirs)


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "here.txt").write_text("of the host\n")
    words = [str(tmp_path) if word == "DIR" else word for word in getattr(request, "param", "DIR").split()]
    made = Terminal(*words)
    yield made
    made.close()


def test_a_shell_with_job_control_resizing_and_its_exit_status(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("$ ")
    terminal.type("stty size; tty; id -un; cat here.txt; touch x || echo read''only\n")
    shown = terminal.until("readonly")
    assert "30 90" in shown and "/dev/pts/" in shown and "sandbox" in shown and "of the host" in shown
    terminal.type("sleep 1000\n")
    time.sleep(0.3)
    terminal.type("\x03")
    terminal.until("$ ")
    terminal.resize(100, 40)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo re''sized\n")
    terminal.until("resized")
    terminal.type("exit 7\n")
    assert terminal.ended() == 7
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert sorted(os.listdir(tmp_path)) == ["here.txt"]


@pytest.mark.parametrize("terminal", ["--write DIR"], indirect=True)
def test_a_directory_that_may_be_written(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("$ ")
    terminal.type("pwd; echo mine > made; exit\n")
    terminal.until("/work")
    assert terminal.ended() == 0
    assert (tmp_path / "made").read_text() == "mine\n"


@pytest.mark.attack("S2-31")
def test_what_a_guest_asks_of_the_terminal_is_not_typed_into_the_users_shell(terminal: Terminal) -> None:
    terminal.until("$ ")
    terminal.type("printf '\\033[c'; exit\n")
    terminal.until("\x1b[5n")
    terminal.type("\x1b[?1;2c; rm -rf canary\n\x1b[0n")
    assert terminal.process.wait(30) == 0
    os.set_blocking(terminal.theirs, False)
    with pytest.raises(BlockingIOError):
        os.read(terminal.theirs, 100)


def test_without_a_terminal_it_says_so(warmcell: Any, stdin: Any) -> None:
    stdin(b"")
    ended = warmcell("shell")
    assert ended.status == 2 and "needs a terminal" in ended.stderr and "warmcell run command" in ended.stderr
