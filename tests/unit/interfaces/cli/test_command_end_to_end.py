"""The real command over the real backend, in a process of its own, as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.helpers import eventually, require
from tests.unit.interfaces.cli.command import COMMAND, warmcell


@pytest.fixture(autouse=True, scope="module")
def cage() -> None:
    ended = warmcell("run", "command", "-c", "true")
    require(ended.returncode == 0, f"no cage works here: {ended.stderr.decode()}")


def test_the_main_job() -> None:
    ended = warmcell("run", "python", "-c", "print(6*7)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"42\n", b"")


def test_stdin_goes_to_the_guest_unchanged() -> None:
    ended = warmcell("run", "command", "-c", "cat", stdin=b"\0\xff" * 100_000)
    assert (ended.returncode, ended.stdout) == (0, b"\0\xff" * 100_000)


def test_a_program_from_stdin() -> None:
    assert warmcell("run", "python", "-", stdin=b"print('piped')").stdout == b"piped\n"


@pytest.mark.attack("PT-06")
@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_exit_statuses(status: int) -> None:
    assert warmcell("run", "command", "-c", f"exit {status}").returncode == status


@pytest.mark.attack("PT-06")
def test_a_signal_is_not_a_timeout() -> None:
    ended = warmcell("run", "command", "-c", "kill -TERM $$")
    assert ended.returncode == 128 + signal.SIGTERM
    assert b"timed out" not in ended.stderr


@pytest.mark.claim("WC-RX-1")
def test_a_timeout_keeps_the_partial_output() -> None:
    ended = warmcell("run", "command", "--timeout", "1", "-c", "echo so far; sleep 60 & setsid sleep 60")
    assert (ended.returncode, ended.stdout) == (124, b"so far\n")
    assert b"error: execution timed out after 1 s" in ended.stderr


@pytest.mark.attack("RX-02")
@pytest.mark.claim("WC-RX-2")
def test_memory_has_its_own_status() -> None:
    program = "held = bytearray(300 << 20); import time; time.sleep(60); print(len(held))"
    ended = warmcell("run", "python", "--memory", "64", "-c", program)
    assert (ended.returncode, ended.stdout) == (137, b"")
    assert b"64 MB" in ended.stderr


@pytest.mark.attack("LK-01")
@pytest.mark.claim("WC-LK-1")
def test_the_guest_has_what_it_was_given_and_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMCELL_CANARY", "hunter2")
    ended = warmcell("run", "command", "--env", "GIVEN=yes", "-c", "env; cat /proc/*/environ")
    assert b"GIVEN=yes" in ended.stdout
    assert b"hunter2" not in ended.stdout


@pytest.mark.claim("WC-FS-3")
def test_paths_are_readable_or_writable_as_allowed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/x").write_text("canary")
    for path in (tmp_path, tmp_path / "in", tmp_path / "out"):
        path.chmod(0o755 if path.name != "out" else 0o777)
    script = f"cat {tmp_path}/in/x; echo changed > {tmp_path}/in/x; echo made > {tmp_path}/out/y"
    allowed = ["--allow-read", str(tmp_path / "in"), "--allow-write", str(tmp_path / "out")]
    ended = warmcell("run", "command", *allowed, "-c", script)
    assert ended.stdout == b"canary"
    assert (tmp_path / "in/x").read_text() == "canary"
    assert (tmp_path / "out/y").read_text() == "made\n"


@pytest.mark.claim("WC-PT-5")
def test_json() -> None:
    ended = warmcell("run", "python", "--json", "-c", "print(6*7)")
    plain = json.loads(ended.stdout)
    assert (plain["status"], plain["stdout"], plain["exit_code"]) == ("success", "42\n", 0)
    assert plain["enforced"]["isolation_class"] == "process+sandbox"
    assert plain["enforced"]["network"]


def running(marker: str) -> list[int]:
    """Host processes with `marker` among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.needs("linux")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
@pytest.mark.claim("WC-RX-5")
def test_an_interrupted_command_leaves_nothing(number: signal.Signals, status: int) -> None:
    nap = f"300.{os.getpid()}{int(number)}"
    command = subprocess.Popen(
        [*COMMAND, "run", "command", "-c", f"sleep {nap} & sleep {nap}"], stdin=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: len(running(nap)) >= 2), "the guest never started"
        command.send_signal(number)
        assert command.wait(15) == status
        assert eventually(lambda: running(nap) == []), "a guest outlived its supervisor"
    finally:
        command.kill()
        command.wait()


def test_json_says_which_language_it_was_and_what_ran_it() -> None:
    plain = json.loads(warmcell("run", "py", "-c", "print(1)", "--json").stdout)
    assert plain["language"] == "python"
    assert plain["version"].startswith("Python 3")
