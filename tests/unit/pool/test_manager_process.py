"""Manager processes: started ahead, used once, ended without a trace."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, eventually, fork_child, open_descriptors, reap

from warmcell.cage import wire
from warmcell.cage.failure import CageError
from warmcell.cage.linux import kernel_support
from warmcell.cage.wire import send_packet
from warmcell.core.errors import EnforcerFailed
from warmcell.enforcers import namespaces_probe, namespaces_report, probe
from warmcell.lifetime.host_program import base_executable
from warmcell.pool import manager_process
from warmcell.pool.manager_process import ManagerProcess, acquire_manager, first_order, start_ahead
from warmcell.pool.prestarted_manager import PrestartedManager
from warmcell.pool.zygote import ZygoteKey, ZygoteProcess


@pytest.fixture(autouse=True)
def none_started_ahead() -> None:
    """Ends managers that another test of this process left waiting."""
    while manager_process._prestarted:
        manager_process._prestarted.popitem()[1].close_channels()


def test_one_that_is_not_needed_ends_and_leaves_nothing() -> None:
    before = open_descriptors()
    process = ManagerProcess(base_executable())
    assert process.is_running()
    process.close_channels()
    assert process.await_end(10) and not process.is_running()
    assert eventually(lambda: open_descriptors() <= before)


def test_one_that_somebody_let_go_of_is_not_asked_again() -> None:
    """A backend that is closed in one thread, while another finds that its cell was lost."""
    process = ManagerProcess(base_executable())
    assert not process.await_end_or_hangup(0.05)
    process.close_channels()
    assert process.await_end_or_hangup(0) and process.await_end(10)


def test_one_started_ahead_is_used_once() -> None:
    start_ahead(base_executable())
    early = manager_process._prestarted[base_executable()]
    assert (
        acquire_manager(base_executable(), (), first_order("namespaces")) is early
        and base_executable() not in manager_process._prestarted
    )
    early.close_channels()
    assert early.await_end(10)


def test_one_that_comes_when_another_was_started_ahead_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_process, "_NAMESPACES_SECONDS", PATIENCE)
    start_ahead(base_executable())
    second = PrestartedManager(base_executable())
    start_ahead(base_executable(), second)
    with pytest.raises(ChildProcessError):
        os.waitpid(second.pid, os.WNOHANG)
    first = manager_process._prestarted.pop(base_executable())
    assert (
        first.report_namespaces()[0] and first.is_running()
    )  # it clones itself; from then on the clone is the manager
    first.close_channels()
    assert first.await_end(10)


def test_one_that_will_not_do_is_let_go() -> None:
    """A scope of systemd must be around it from the beginning."""
    start_ahead(base_executable())
    early = manager_process._prestarted[base_executable()]
    wrapped = acquire_manager(base_executable(), ("/usr/bin/env",), first_order("namespaces"))
    assert wrapped is not early and early.await_end(10)
    wrapped.close_channels()
    assert wrapped.await_end(10)


def test_one_that_became_something_else_is_let_go() -> None:
    start_ahead(base_executable())
    early = manager_process._prestarted[base_executable()]
    other = acquire_manager(base_executable(), (), first_order("none", has_worker=False))
    assert other is not early and early.await_end(10)
    other.close_channels()
    assert other.await_end(10)


def test_an_interpreter_that_is_not_there_is_an_error_and_no_leak() -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        ManagerProcess("/nowhere/python")
    assert eventually(lambda: open_descriptors() <= before)
    start_ahead("/nowhere/python")  # reported when it is needed
    assert "/nowhere/python" not in manager_process._prestarted


def test_its_error_message_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text(f"#!{sys.executable}\nraise SystemExit('no such luck')\n")
    broken.chmod(0o755)
    process = ManagerProcess(str(broken))
    assert process.read_last_error() == "no such luck"
    process.close_channels()
    assert process.await_end(10)


def test_it_can_be_killed_twice() -> None:
    process = ManagerProcess(base_executable())
    process.kill()
    assert process.await_end(10)
    process.kill()
    process.close_channels()


def test_it_sees_its_own_four_descriptors_even_when_low_numbers_are_free(tmp_path: Path) -> None:
    """A caller without standard streams must not get its zygote's channels mixed up."""

    def start_without_streams() -> None:
        for number in range(3):
            os.close(number)
        process = ManagerProcess(base_executable())

        def has_its_channels() -> bool:
            kinds = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(4)]
            return all(kind.startswith("pipe:") for kind in kinds[:3]) and kinds[3].startswith("socket:")

        os._exit(
            0 if eventually(lambda: not process.is_running() or has_its_channels()) and process.is_running() else 1
        )

    assert reap(fork_child(start_without_streams)) == 0


@pytest.mark.usefixtures("no_witness")
def test_one_started_ahead_tells_that_namespaces_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """So they are not probed first: that takes a process, and the end of its namespaces is waited for."""
    monkeypatch.setattr(namespaces_probe, "refusal", lambda: pytest.fail("they were tried"))
    monkeypatch.setattr(manager_process, "_NAMESPACES_SECONDS", PATIENCE)
    start_ahead(base_executable())
    seen = namespaces_report.read_report()
    assert seen == (True, kernel_support.landlock_version_if_complete()) and probe._why_no_namespaces(seen[0]) is None
    zygote = ZygoteProcess(ZygoteKey(base_executable(), "namespaces", "native"))  # which finds what was said meanwhile
    assert zygote.is_alive()
    zygote.close()


@pytest.mark.usefixtures("no_witness")
def test_where_it_could_not_make_them_they_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = CageError("create namespaces", errno.EPERM, "")
    monkeypatch.setattr(namespaces_probe, "refusal", lambda: tried)
    start_ahead(base_executable())
    early = manager_process._prestarted.pop(base_executable())
    early.kill()
    assert probe._try_namespaces(namespaces_report.read_report()[0]) is tried and early.unread == [{}]
    early.close_channels()
    assert early.await_end(10) and early.report_namespaces() == (False, 0)


@pytest.fixture
def no_witness() -> Iterator[None]:
    """Nor one that was started ahead for a command of another test, which had no use for it in the end."""
    namespaces_report._reporters.clear()
    for early in manager_process._prestarted.values():
        early.discard()
    manager_process._prestarted.clear()
    yield
    namespaces_report._reporters.clear()


def test_one_that_dies_before_its_order_is_reported_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho these are my last words >&2\nexit 3\n")
    program.chmod(0o755)

    def late(*arguments: object) -> None:
        time.sleep(0.5)
        send_packet(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(wire, "send_packet", late)
    before = open_descriptors()
    with pytest.raises(EnforcerFailed, match="these are my last words"):
        ZygoteProcess(ZygoteKey(str(program), "namespaces", "native", has_worker=False))
    assert eventually(lambda: open_descriptors() <= before)
