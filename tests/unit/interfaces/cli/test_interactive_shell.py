"""`warmcell shell`, by a person at a terminal."""

from __future__ import annotations

import os
import re
import signal
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.interfaces.cli.terminal import PATIENT, Terminal

from warmcell.interfaces.cli import interactive_shell

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "here.txt").write_text("of the host\n")
    words = [str(tmp_path) if word == "DIR" else word for word in getattr(request, "param", "DIR").split()]
    made = Terminal("shell", *words)
    yield made
    made.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal("shell", str(tmp_path), code=PATIENT)
    yield made
    made.close()


def test_a_shell_with_job_control_resizing_and_its_exit_status(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("$ ")
    terminal.type("stty size; tty; id -un; cat here.txt; touch x || echo read''only\n")
    shown = terminal.until("readonly")
    assert "30 90" in shown and "/dev/pts/" in shown and "sandbox" in shown and "of the host" in shown
    terminal.type("sh -c 'echo be''gun; exec sleep 1000'\n")
    terminal.until("begun")  # it is the foreground job
    terminal.type("\x03")
    terminal.until("$ ")
    terminal.resize(100, 40)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo re''sized\n")
    terminal.until("resized")
    terminal.type("exit 7\n")
    assert terminal.wait() == 7
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert sorted(os.listdir(tmp_path)) == ["here.txt"]


@pytest.mark.parametrize("terminal", ["--write DIR"], indirect=True)
def test_a_directory_that_may_be_written(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("$ ")
    terminal.type("pwd; echo mine > made; exit\n")
    terminal.until("/work")
    assert terminal.wait() == 0
    assert (tmp_path / "made").read_text() == "mine\n"


@pytest.mark.attack("S2-31")
def test_what_a_guest_asks_of_the_terminal_is_not_typed_into_the_users_shell(patient: Terminal) -> None:
    patient.until("$ ")
    patient.type("printf '\\033[5n\\033[6n\\033[c'; exit\n")
    answers = patient.answers()
    patient.type("\x1b[0n\x1b[1;7R")  # as soon as it was asked; the rest follows later
    time.sleep(0.2)
    assert patient.process.poll() is None
    patient.type("\x1b[?1;2c; rm -rf canary\n" + answers)
    assert patient.process.wait(30) == 0
    os.set_blocking(patient.theirs, False)
    with pytest.raises(BlockingIOError):
        os.read(patient.theirs, 100)


class SlowTerminal:
    """Replies every 0.4 s by its own clock: so many times to a guest's queries, then to ours."""

    def __init__(self, count: int) -> None:
        self.keyboard, self._typing = os.pipe()
        self._asked, self.screen = os.pipe()
        self._count, self.now = count, 0.0

    def select(self, *lists_and_seconds: Any) -> tuple[list[int], list[int], list[int]]:
        """As `select.select`, for the keyboard."""
        seconds = lists_and_seconds[3]
        if seconds < 0.4:
            self.now += seconds
            return [], [], []
        self.now += 0.4
        self._count -= 1
        os.write(self._typing, b"\x1b[?1;2c" if self._count >= 0 else self._position())
        return [self.keyboard], [], []

    def _position(self) -> bytes:
        columns = re.findall(rb"\x1b\[(\d+)G\x1b\[6n", os.read(self._asked, 4096))
        return b"".join(b"\x1b[1;%bR" % column for column in columns)

    def close(self) -> None:
        for descriptor in (self.keyboard, self._typing, self._asked, self.screen):
            os.close(descriptor)


@pytest.mark.attack("S2-31")
@pytest.mark.parametrize(("count", "seconds"), [(8, 3.6), (1000, 10.0)])
def test_answers_that_keep_coming_are_all_discarded(
    monkeypatch: pytest.MonkeyPatch, count: int, seconds: float
) -> None:
    """Each has time of its own, until all together have taken too long."""
    terminal = SlowTerminal(count)
    monkeypatch.setattr(interactive_shell, "select", terminal)
    monkeypatch.setattr(interactive_shell, "time", SimpleNamespace(monotonic=lambda: terminal.now))
    try:
        interactive_shell._drop_replies(terminal.keyboard, terminal.screen)
        assert terminal.now == pytest.approx(seconds)
        os.set_blocking(terminal.keyboard, False)
        with pytest.raises(BlockingIOError):
            os.read(terminal.keyboard, 100)
    finally:
        terminal.close()


def test_no_mode_of_the_guests_makes_the_terminal_type(terminal: Terminal) -> None:
    """Reports of size and colours, of mouse and focus; keys that are encoded in another way."""
    terminal.until("$ ")
    terminal.type("exit\n")
    shown = terminal.until("\x1b[0m\x1b7")
    for mode in (9, 1000, 1003, 1004, 2004, 2031, 2048):
        assert f"\x1b[?{mode}l" in shown
    assert "\x1b[<99u" in shown and "\x1b[>4m" in shown and "\x1b[2;4;20l" in shown
    terminal.type("\x1b[1;1R")
    assert terminal.process.wait(30) == 0


def test_without_a_terminal_it_says_so(warmcell: Any, stdin: Any) -> None:
    stdin(b"")
    ended = warmcell("shell")
    assert ended.status == 2 and "needs a terminal" in ended.stderr and "warmcell run command" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["sleep 1000", "yes"])
def test_a_signal_restores_the_terminal(terminal: Terminal, number: int, command: str) -> None:
    """Also while output never pauses."""
    terminal.until("$ ")
    terminal.type(f"echo go''es; {command}\n")
    terminal.until("goes")
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def fill(terminal: Terminal) -> None:
    """Until it accepts nothing. `select` may still call it writable, as the kernel moves what was written."""
    writer = os.open(f"/proc/self/fd/{terminal.theirs}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"y" * 4096)
    os.close(writer)


def test_a_signal_ends_the_shell_while_the_terminal_takes_nothing(terminal: Terminal) -> None:
    terminal.until("$ ")
    terminal.type("echo go''es; yes\n")
    terminal.until("goes")
    fill(terminal)
    terminal.process.terminate()
    assert terminal.process.wait(60) == 128 + signal.SIGTERM
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_keys_that_are_not_read_stay_in_the_terminal(terminal: Terminal) -> None:
    terminal.until("$ ")
    terminal.type("stty raw -echo; echo go''es; sleep 1000\n")
    terminal.until("goes")
    os.set_blocking(terminal.screen, False)
    sent, deadline = 0, time.monotonic() + 10
    while time.monotonic() < deadline and sent < 8 << 20:
        try:
            sent += os.write(terminal.screen, b"x" * 4096)
            deadline = time.monotonic() + 1
        except BlockingIOError:
            time.sleep(0.01)
    assert sent < 1 << 20
    terminal.process.terminate()
    terminal.process.wait(30)


def test_without_its_terminal_the_shell_ends(terminal: Terminal) -> None:
    terminal.until("$ ")
    terminal.type("trap '' HUP; echo go''es; sleep 1000\n")
    terminal.until("goes")
    os.close(terminal.screen)
    assert terminal.process.wait(30) == 128 + signal.SIGHUP
    terminal.screen = os.open("/dev/null", os.O_RDONLY)
