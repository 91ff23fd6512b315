"""Processes that become zygotes: started early, used once, let go without a trace."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcell.cage import wire
from warmcell.cage.failure import CageError
from warmcell.cage.linux import offered
from warmcell.cage.wire import send_packet
from warmcell.core.errors import EnforcerFailed
from warmcell.enforcers import namespaces_probe, namespaces_witness, probe
from warmcell.languages.base import base_executable
from warmcell.pool import start
from warmcell.pool.spawn import Early
from warmcell.pool.start import Start, first_order, start_ahead, started
from warmcell.pool.zygote import ZygoteKey, ZygoteProcess


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_one_that_is_not_needed_ends_and_leaves_nothing() -> None:
    before = _descriptors()
    process = Start(base_executable())
    assert process.is_running()
    process.let_go()
    assert process.await_end(10) and not process.is_running()
    assert _descriptors() == before


def test_one_that_somebody_let_go_of_is_not_asked_again() -> None:
    """A backend that is closed in one thread, while another finds that its cell was lost."""
    process = Start(base_executable())
    assert not process.await_end_or_deafness(0.05)
    process.let_go()
    assert process.await_end_or_deafness(0) and process.await_end(10)


def test_one_started_ahead_is_used_once() -> None:
    start_ahead(base_executable())
    early = start._ahead[base_executable()]
    assert started(base_executable(), (), first_order("namespaces")) is early and base_executable() not in start._ahead
    early.let_go()
    assert early.await_end(10)


def test_one_that_comes_when_another_was_started_ahead_ends() -> None:
    start_ahead(base_executable())
    second = Early(base_executable())
    start_ahead(base_executable(), second)
    with pytest.raises(ChildProcessError):
        os.waitpid(second.pid, os.WNOHANG)
    first = start._ahead.pop(base_executable())
    assert first.is_running()
    first.let_go()
    assert first.await_end(10)


def test_one_that_will_not_do_is_let_go() -> None:
    """A scope of systemd must be around it from the beginning."""
    start_ahead(base_executable())
    early = start._ahead[base_executable()]
    wrapped = started(base_executable(), ("/usr/bin/env",), first_order("namespaces"))
    assert wrapped is not early and early.await_end(10)
    wrapped.let_go()
    assert wrapped.await_end(10)


def test_one_that_became_something_else_is_let_go() -> None:
    start_ahead(base_executable())
    early = start._ahead[base_executable()]
    other = started(base_executable(), (), first_order("none", has_worker=False))
    assert other is not early and early.await_end(10)
    other.let_go()
    assert other.await_end(10)


def test_an_interpreter_that_is_not_there_is_an_error_and_no_leak() -> None:
    before = _descriptors()
    with pytest.raises(FileNotFoundError):
        Start("/nowhere/python")
    assert _descriptors() == before
    start_ahead("/nowhere/python")  # told when it is needed
    assert "/nowhere/python" not in start._ahead


def test_what_it_complains_about_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text(f"#!{sys.executable}\nraise SystemExit('no such luck')\n")
    broken.chmod(0o755)
    process = Start(str(broken))
    assert process.last_words() == "no such luck"
    process.let_go()
    assert process.await_end(10)


def test_it_can_be_killed_twice() -> None:
    process = Start(base_executable())
    process.kill()
    assert process.await_end(10)
    process.kill()
    process.let_go()


def test_it_sees_its_own_four_descriptors_even_when_low_numbers_are_free(tmp_path: Path) -> None:
    """A caller without standard streams must not get its zygote's channels mixed up."""
    pid = os.fork()
    if pid == 0:
        try:
            for number in range(3):
                os.close(number)
            process = Start(base_executable())
            deadline = time.monotonic() + 5
            while process.is_running() and time.monotonic() < deadline:
                kinds = {number: os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(4)}
                if all(kinds[number].startswith("pipe:") for number in range(3)) and kinds[3].startswith("socket:"):
                    os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.usefixtures("no_witness")
def test_one_started_ahead_tells_that_namespaces_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody tries them first: that takes a process, and the end of its namespaces is waited for."""
    monkeypatch.setattr(namespaces_probe, "refusal", lambda: pytest.fail("they were tried"))
    start_ahead(base_executable())
    seen = namespaces_witness.what_was_seen()
    assert seen == (True, offered.landlock_beside_all_else()) and probe._why_no_namespaces(seen[0]) is None
    zygote = ZygoteProcess(ZygoteKey(base_executable(), "namespaces", "native"))  # which finds what was said meanwhile
    assert zygote.is_alive()
    zygote.close()


@pytest.mark.usefixtures("no_witness")
def test_where_it_could_not_make_them_they_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = CageError("create namespaces", errno.EPERM, "")
    monkeypatch.setattr(namespaces_probe, "refusal", lambda: tried)
    start_ahead(base_executable())
    early = start._ahead.pop(base_executable())
    early.kill()
    assert probe._tried(namespaces_witness.what_was_seen()[0]) is tried and early.heard == [{}]
    early.let_go()
    assert early.await_end(10) and early.what_it_saw() == (False, 0)


@pytest.fixture
def no_witness() -> Iterator[None]:
    """Nor one that was started ahead for a command of another test, which had no use for it in the end."""
    namespaces_witness._witnesses.clear()
    for early in start._ahead.values():
        early.discard()
    start._ahead.clear()
    yield
    namespaces_witness._witnesses.clear()


def test_one_that_dies_before_its_order_is_sent_is_told_of_as_any_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho these are my last words >&2\nexit 3\n")
    program.chmod(0o755)

    def late(*arguments: object) -> None:
        time.sleep(0.5)
        send_packet(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(wire, "send_packet", late)
    before = _descriptors()
    with pytest.raises(EnforcerFailed, match="these are my last words"):
        ZygoteProcess(ZygoteKey(str(program), "namespaces", "native", has_worker=False))
    assert _descriptors() == before
