"""Terminals of the live cage: a devpts of its own, resizing, job control, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

from warmcell import Process, PtySize, Sandbox, errors

pytestmark = pytest.mark.needs("linux", "user namespaces")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


class Screen:
    """What was shown so far."""

    def __init__(self, process: Process) -> None:
        self.process, self.text = process, ""
        self._events = process.output()

    def until(self, words: str) -> str:
        """Waits for the words; the process ends by its own timeout where they never come."""
        while words not in self.text:
            self.text += next(self._events).data.decode()
        shown, _, self.text = self.text.partition(words)
        return shown


def test_a_terminal_is_one(sandbox: Sandbox) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo complaint >&2"
    result = sandbox.spawn(script, pty=PtySize(100, 30)).wait(30)
    assert result.stdout == "/dev/pts/0\r\n30 100\r\ncomplaint\r\n"
    assert (result.exit_code, result.stderr) == (0, "")


def test_it_is_the_controlling_terminal_and_can_be_resized(sandbox: Sandbox) -> None:
    program = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"now %d %d\\n" % os.get_terminal_size(0)))
print(os.tcgetpgrp(0) == os.getpgrp(), os.open("/dev/tty", os.O_RDWR) > 2, flush=True)
while True: time.sleep(0.05)
"""
    process = sandbox.spawn(["python3", "-c", program], pty=PtySize(80, 24), timeout=30)
    screen = Screen(process)
    assert screen.until("\r\n") == "True True"
    process.resize(132, 43)
    screen.until("now 132 43")
    process.kill()
    with pytest.raises(errors.InvalidRequest, match="no terminal"):
        sandbox.spawn("sleep 100").resize(1, 1)
    with pytest.raises(errors.InvalidRequest, match="rows"):
        process.resize(80, 0)


def test_control_c_interrupts_what_is_in_front_and_jobs_work(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["sh", "-i"], pty=PtySize(80, 24), env={"PS1": "prompt> "}, timeout=300)
    screen = Screen(process)
    screen.until("prompt> ")
    process.write("sleep 1000\n")
    _await_foreground(sandbox, process.pid)
    process.write(b"\x03")
    screen.until("prompt> ")
    process.write("echo st''atus $?\n")
    screen.until("status 130")
    process.write("sleep 1001 & jo''bs\n")
    screen.until("sleep 1001")
    process.write("fg\n")
    screen.until("sleep 1001\r\n")
    _await_foreground(sandbox, process.pid)
    process.write(b"\x1a")  # Ctrl-Z
    screen.until("Stopped")
    process.write("kill -9 %1\nexit 5\nexit 5\n")
    assert process.wait(30).exit_code == 5


def _await_foreground(sandbox: Sandbox, shell: int) -> None:
    """Until the shell has given its terminal to another group: field 8 of its stat."""
    script = f"until set -- $(cat /proc/{shell}/stat); [ $8 != {shell} ]; do :; done"
    sandbox.spawn(script, timeout=30).wait()


def test_the_end_of_input_and_of_output(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["cat"], pty=PtySize(80, 24), timeout=30)
    process.write("line\n")
    process.close_stdin()
    result = process.wait(30)
    assert result.stdout == "line\r\nline\r\n"
    much = sandbox.spawn("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end", pty=PtySize(80, 24)).wait(30)
    assert much.stdout.endswith("\r\nend\r\n")
    assert len(much.stdout) == 300_000 + 2 + 5


def test_killing_the_terminals_leader_ends_its_tree(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 1000 & echo ready; sleep 1001", pty=PtySize(80, 24))
    Screen(process).until("ready")
    process.kill()
    assert process.wait(30).signal == signal.SIGKILL


def test_a_missing_command_says_so_on_the_terminal(sandbox: Sandbox) -> None:
    result = sandbox.spawn(["no-such"], pty=PtySize(80, 24)).wait(30)
    assert (result.exit_code, result.stdout) == (127, "no-such: command not found\r\n")


PROBE = """
import errno, fcntl, os, termios
def tried(call, *args):
    try: return str(call(*args))[:20]
    except OSError as error: return errno.errorcode[error.errno]
print(sorted(os.listdir("/dev/pts")))
print("TIOCSTI", tried(fcntl.ioctl, 0, termios.TIOCSTI, b"x"))
print("TIOCLINUX", tried(fcntl.ioctl, 0, 0x541C, b"\\2"))
print("TIOCSETD", tried(fcntl.ioctl, 0, termios.TIOCSETD, b"\\x0d\\0\\0\\0"))
taken = []
try:
    while len(taken) < 500: taken.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error: print("most", len(taken) <= 64, errno.errorcode[error.errno])
"""


@pytest.mark.attack("S2-31")
def test_no_terminal_of_the_host_and_no_injection(sandbox: Sandbox) -> None:
    before = sorted(os.listdir("/dev/pts")) if os.path.isdir("/dev/pts") else []
    process = sandbox.spawn(["python3", "-c", PROBE], pty=PtySize(80, 24))
    lines = process.wait(30).stdout.split("\r\n")
    assert re.fullmatch(r"\['\d', 'ptmx'\]", lines[0])  # by number: that of a test before may not be free yet
    assert lines[1:4] == ["TIOCSTI EPERM", "TIOCLINUX EPERM", "TIOCSETD EPERM"]
    assert lines[4].startswith("most True ENOSPC")
    assert (sorted(os.listdir("/dev/pts")) if os.path.isdir("/dev/pts") else []) == before


def test_runs_have_no_terminals(sandbox: Sandbox) -> None:
    assert sandbox.sh("ls /dev/pts /dev/ptmx").exit_code != 0
