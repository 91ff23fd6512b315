"""`warmcell shell`, by a person at a terminal."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.interfaces.cli.terminal import Terminal

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "here.txt").write_text("of the host\n")
    words = [str(tmp_path) if word == "DIR" else word for word in getattr(request, "param", "DIR").split()]
    made = Terminal("shell", *words)
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
def test_what_a_guest_asks_of_the_terminal_is_not_typed_into_the_users_shell(terminal: Terminal) -> None:
    terminal.until("$ ")
    terminal.type("printf '\\033[5n\\033[6n\\033[c'; exit\n")
    answers = terminal.answers()
    terminal.type("\x1b[0n\x1b[1;7R")  # as soon as it was asked; the rest follows later
    time.sleep(0.2)
    assert terminal.process.poll() is None
    terminal.type("\x1b[?1;2c; rm -rf canary\n" + answers)
    assert terminal.process.wait(30) == 0
    os.set_blocking(terminal.theirs, False)
    with pytest.raises(BlockingIOError):
        os.read(terminal.theirs, 100)


@pytest.mark.attack("S2-31")
def test_answers_that_keep_coming_are_all_discarded(terminal: Terminal) -> None:
    terminal.until("$ ")
    terminal.type("exit\n")
    answers = terminal.answers()
    for _ in range(8):
        time.sleep(0.1)
        terminal.type("\x1b[?1;2c")
    assert terminal.process.poll() is None
    terminal.type(answers)
    assert terminal.process.wait(30) == 0


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
