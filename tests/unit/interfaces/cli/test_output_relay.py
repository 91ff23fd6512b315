"""`warmcell run` relays output while the guest runs; a slow or stopped reader does not block the run."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from tests.contract.processes import descendants
from tests.helpers import PATIENCE, eventually, require

from warmcell.interfaces.cli.exits import BROKEN_PIPE, OUR_FAILURE, TIMEOUT
from warmcell.interfaces.cli.messages import OutputLost, PassThrough

pytestmark = [pytest.mark.needs("linux", "user namespaces")]


@contextmanager
def command(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "warmcell", *([] if arguments[0] == "sh" else ["run"]), *arguments]
    streams: dict[str, Any] = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(argv, **(streams | options)) as running:
        try:
            yield running
        finally:
            running.kill()


def test_a_line_arrives_while_the_guest_still_runs() -> None:
    with command("python", "-c", "print('name?'); print('hello', input())") as running:
        assert running.stdout and running.stdin
        assert running.stdout.readline() == b"name?\n"  # it gets no further before it is answered
        running.stdin.write(b"you\n")
        running.stdin.close()
        assert running.stdout.read() == b"hello you\n"
        assert running.wait(30) == 0


def test_a_script_of_the_toolbox_is_heard_while_it_runs() -> None:
    require(find_spec("wasmtime"), "wasmtime is not installed")
    script = "printf 'early \\377\\n'; echo told >&2; sleep 40"
    with command("sh", script, "--timeout", "60", stdin=subprocess.DEVNULL) as running:
        assert running.stdout and running.stderr
        assert running.stdout.readline() == b"early \xff\n"
        lines = iter(running.stderr.readline, b"")
        assert next(line for line in lines if not line.startswith(b"note: compiling ")) == b"told\n"  # with a new cache
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stdout.read() == b""


def test_ctrl_c_keeps_what_was_printed() -> None:
    code = "echo printed; echo told >&2; exec sleep 60"
    with command("command", "-c", code, stdin=subprocess.DEVNULL) as running:
        assert running.stdout and running.stderr
        assert running.stdout.readline() == b"printed\n"
        assert running.stderr.readline() == b"told\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stdout.read() == b""


def test_everything_arrives_byte_for_byte() -> None:
    code = "import os\nfor n in range(40): os.write(1, bytes(range(256)) * 64); os.write(2, bytes([n]) * 999)"
    with command("python", "-c", code, stdin=subprocess.DEVNULL) as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, bytes(range(256)) * 64 * 40)
    assert err == b"".join(bytes([n]) * 999 for n in range(40))


def test_a_reader_that_does_not_read_cannot_make_the_guest_overstay() -> None:
    code = "import os, time\nos.write(1, b'x' * 900_000)\ntime.sleep(600)"
    with command("python", "--timeout", "1", "-c", code, stdin=subprocess.DEVNULL) as running:
        assert running.stdout and running.stderr
        assert select.select([running.stdout], [], [], PATIENCE)[0], "it printed nothing"
        assert eventually(lambda: not descendants(running.pid), 60), "it was ended although nobody read"
        assert len(running.stdout.read()) >= 65536
        assert b"timed out after 1 s" in running.stderr.read()
        assert running.wait(30) == TIMEOUT


def test_a_reader_that_goes_ends_the_run() -> None:
    code = "while echo line; do :; done"
    with command("command", "-c", code, "--max-output", "1000000000", stdin=subprocess.DEVNULL) as running:
        assert running.stdout and running.stderr
        assert running.stdout.readline() == b"line\n"
        running.stdout.close()
        assert running.wait(20) == BROKEN_PIPE
        assert running.stderr.read() == b""


def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "wb") as full, command("python", "-c", "print(1)", stdout=full) as running:
        _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (OUR_FAILURE, b"error: no space left on device\n")


def test_what_is_not_taken_waits_and_nothing_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    calls: list[str] = []
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb") as other_end:
        monkeypatch.setattr(sys, "stdout", stream)
        output = PassThrough(lambda: calls.append("first"))
        assert output.wait_target() is None
        for _ in range(4):
            output.deliver("stdout", b"x" * 50_000)
        behind = output.wait_target()
        assert behind is not None
        assert (behind[0], calls, output.has_output) == (writer, ["first"], True)
        taken = 0
        while output.wait_target() is not None:
            taken += len(os.read(reader, 65536))
            output.catch_up()
        assert taken < 200_000 == taken + len(os.read(reader, 200_000))
        output.finish()
        other_end.close()
        with pytest.raises(OutputLost):
            output.deliver("stdout", b"nobody")
