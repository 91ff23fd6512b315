"""The watcher's books: the end of one cell is no end of another's watch."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.helpers import eventually, fork_child, lingering_socket, reap

from warmcell.cage.cell_shape import CODE_DIRECTORY, PROCESSES
from warmcell.cage.plan import Bind, LaunchPlan, Watch
from warmcell.cage.watching import ceilings, disk, watcher
from warmcell.cage.watching import loop as watcher_loop
from warmcell.cage.watching.ceilings import Ceilings
from warmcell.cage.watching.loop import Loop, _Cell
from warmcell.cage.wire import receive_packet, send_packet


@pytest.mark.attack("RX-02")
def test_a_descriptor_whose_number_was_used_before_is_still_waited_for() -> None:
    """Else the second cell is never looked at, and its guest takes as much memory as the host has."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = Loop(theirs)
        begun, go = os.pipe()
        for number in (1, 2):  # the first has begun, and what it had waited on was called by the same number
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
            loop._cells[number] = _Cell(Watch(), 0, files[0], begun, files[1], files[2])
        loop._waiting[begun] = 2
        loop._poll.register(begun)
        loop._forget(1)
        assert loop._waiting == {begun: 2}
        os.close(go)
        assert begun in dict(loop._poll.poll(0))
        loop._forget(2)
        assert loop._waiting == {}
        with pytest.raises(OSError):
            os.fstat(begun)


def test_one_guest_that_asks_too_much_is_refused_and_no_other() -> None:
    """Each request is for a mapping of shared memory; during a long look the watcher reads none of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        manager_end = watcher.Watcher()
        manager_end._channel = ours
        while manager_end.note_shared_memory(1, 1 << 20):
            pass
        assert manager_end.note_shared_memory(2, 7 << 20) and not manager_end.is_up_to_date
        assert not manager_end.note_shared_memory(1, 1 << 20)
        theirs.settimeout(5)
        while (message := receive_packet(theirs)[0])["shared"] != 2:
            manager_end.send_waiting()
        assert message["length"] == 7 << 20
        manager_end.close()


def test_messages_that_pile_up_during_looks_are_read_together() -> None:
    """One for each turn would make the manager, and with it every other run, wait for the looks at a hostile guest."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        loop = Loop(theirs)
        with ours:
            for _ in range(watcher_loop._MOST_AT_A_TIME + 1):
                send_packet(ours, {"ended": [1]})
            assert loop._read_messages() and loop._messages.poll(0)  # no number of messages delays the next look
            assert loop._read_messages() and not loop._messages.poll(0)
        assert not loop._read_messages()


@pytest.mark.attack("S2-10")
def test_no_guest_begins_before_the_watcher_can_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had written by then would be taken for what was there already."""
    became = watcher._run_watcher

    def late(channel: socket.socket, is_sure: bool) -> NoReturn:
        time.sleep(0.5)
        became(channel, is_sure)

    monkeypatch.setattr(watcher, "_run_watcher", late)
    assert _seconds_to_watch(watcher.Watcher()) >= 0.5


def test_a_watcher_that_dies_at_once_watches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_run_watcher", lambda channel, is_sure: os._exit(1))
    with pytest.raises(OSError, match="did not start"):
        _seconds_to_watch(watcher.Watcher())


def _seconds_to_watch(manager_end: watcher.Watcher) -> float:
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    given = {PROCESSES: files[2], CODE_DIRECTORY: files[3]}
    started = time.monotonic()
    try:
        manager_end.watch(LaunchPlan(watch=Watch(disk_bytes=1)), files[0], files[1], given, files[0], {})
        return time.monotonic() - started
    finally:
        manager_end.close()
        os.waitpid(manager_end.pid, 0)
        for descriptor in files:
            os.close(descriptor)


class Watched:
    """A cell as the watcher is told of it, and the other ends."""

    def __init__(self, disk_path: Path, answer: dict[str, object]) -> None:
        self.manager_end = watcher.Watcher()
        self.asks, asker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begun, self.go = os.pipe()
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        given = {PROCESSES: files[1], CODE_DIRECTORY: files[2]}
        plan = LaunchPlan(watch=Watch(disk_bytes=1 << 20, disk_paths=(str(disk_path),)))
        self.number = self.manager_end.watch(plan, files[0], begun, given, asker.fileno(), answer)
        asker.close()
        for descriptor in (begun, *files):
            os.close(descriptor)

    def is_answered(self, seconds: float) -> bool:
        return bool(select.select([self.asks], [], [], seconds)[0])

    def close(self) -> None:
        self.asks.close()
        os.close(self.go)
        self.manager_end.close()
        os.waitpid(self.manager_end.pid, 0)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path, {"measured": True})
    yield made
    made.close()


@pytest.mark.attack("S2-10")
def test_what_is_there_is_measured_when_the_job_is_there(cell: Watched) -> None:
    assert not cell.is_answered(0.2)
    send_packet(cell.asks, {"measure": True})
    assert cell.is_answered(10) and receive_packet(cell.asks)[0] == {"measured": True}
    assert receive_packet(cell.asks)[0] == {}  # it listens no more


@pytest.mark.attack("S2-10")
def test_who_has_begun_is_measured_at_once_and_then_let_on(tmp_path: Path) -> None:
    """A worker that was shown directories: what it waits for is that answer."""
    shown = Watched(tmp_path, {"attached": 2})
    try:
        os.write(shown.go, b"x")  # as good as closed
        assert shown.is_answered(10) and receive_packet(shown.asks)[0] == {"attached": 2}
        shown.asks.close()
        time.sleep(0.3)
        assert shown.manager_end.receive()  # it is still there
    finally:
        shown.close()


def test_a_cell_that_never_began_is_not_measured_and_let_go_of(cell: Watched, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    assert cell.manager_end.end_of(cell.number) is None  # asked for
    assert receive_packet(cell.asks)[0] == {}
    until = time.monotonic() + 60
    while cell.number not in cell.manager_end.verdicts and time.monotonic() < until:
        cell.manager_end.receive()
    assert cell.manager_end.verdicts[cell.number] == watcher.NO_VERDICT


@pytest.fixture
def loop() -> Iterator[Loop]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield Loop(theirs)


def _cell(init: int, watch: Watch) -> _Cell:
    return _Cell(watch, 0, init, -1, *(os.open(os.devnull, os.O_RDONLY) for _ in range(2)))


@pytest.mark.attack("RX-02")
def test_others_are_looked_at_while_much_is_measured(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    monkeypatch.setattr(disk.Walk, "advance", lambda *_: False)
    monkeypatch.setattr(Ceilings, "look", lambda self: looks.append(self) or 0.0)
    watches = (Watch(disk_bytes=1, disk_paths=(str(tmp_path),)), Watch(memory_bytes=1))
    for number, watch in enumerate(watches):
        loop._cells[number] = _cell(os.open(os.devnull, os.O_RDONLY), watch)
        loop._due[number] = 0.0
    for _ in range(3):
        for number in (0, 1):
            loop._check_cell(number)
    assert len(looks) == 3 and set(loop._due) == {0, 1}
    for number in (0, 1):
        loop._forget(number)


@pytest.mark.attack("RX-02")
def test_others_are_looked_at_during_the_last_measurement_of_a_cell(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that leaves 200,000 files, or whose directory is on a slow disk, must not leave others unwatched."""
    looks: list[object] = []
    steps = [False, False, True]
    monkeypatch.setattr(Ceilings, "look", lambda self: looks.append(self) or 0.0)
    watches = (Watch(disk_bytes=1 << 20, disk_paths=(str(tmp_path),)), Watch(memory_bytes=1))
    for number, watch in enumerate(watches):
        loop._cells[number] = _cell(os.open(os.devnull, os.O_RDONLY), watch)
    assert loop._cells[0].ceilings.measure()
    loop._due[1] = 0.0
    monkeypatch.setattr(disk.Walk, "advance", lambda *_: steps.pop(0))
    loop._end(0, reports=True)
    for looks_so_far in (1, 2):
        assert set(loop._cells) == {0, 1}
        for number in (0, 1):
            loop._check_cell(number)
        assert len(looks) == looks_so_far
    assert set(loop._cells) == {1} and not steps and not loop._ending
    loop._forget(1)


@pytest.mark.attack("RX-02")
def test_no_cell_waits_for_the_exit_of_another(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a cell may take long to exit, as with much memory; only its own last measurement waits."""
    monkeypatch.setattr(watcher_loop, "_LAST_MOMENT_SECONDS", 3600.0)
    watches = (Watch(disk_bytes=1 << 20, disk_paths=(str(tmp_path),)), Watch(memory_bytes=1))
    with subprocess.Popen(["sleep", "3600"]) as process:
        try:
            for number, watch in enumerate(watches):
                loop._cells[number] = _cell(os.pidfd_open(process.pid), watch)
                assert loop._cells[number].ceilings.measure()
                loop._end(number, reports=True)
            assert set(loop._cells) == {0}
            loop._check_cell(0)
            assert set(loop._cells) == {0}
        finally:
            process.kill()
    loop._check_cell(0)
    assert loop._cells == {} and loop._due == {}


@pytest.mark.attack("RX-16")
def test_a_socket_that_lingers_holds_up_no_look_at_others(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look opens a guest's socket for a moment, and closes it if the guest has done so meanwhile."""

    def look(self: Ceilings) -> NoReturn:
        with lingering_socket() as own:
            os.close(own)
        os._exit(7)

    monkeypatch.setattr(Ceilings, "look", look)
    loop._cells[1] = _cell(os.open(os.devnull, os.O_RDONLY), Watch(memory_bytes=1))
    loop._due[1] = 0.0
    assert reap(fork_child(loop.run)) == 7
    loop._forget(1)


def test_who_ends_in_the_middle_of_a_look_was_not_hidden(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its namespaces are gone before its end is told, and a verdict would take the last look at it away."""

    def refused(self: Ceilings) -> float:
        raise PermissionError(1, "setns")

    monkeypatch.setattr(Ceilings, "look", refused)
    for number, (seconds, patience, is_watched_on) in enumerate([("0.1", 30.0, True), ("60", 0.05, False)]):
        monkeypatch.setattr(watcher_loop, "_LAST_MOMENT_SECONDS", patience)
        with subprocess.Popen(["sleep", seconds]) as process:
            loop._cells[number] = _cell(os.pidfd_open(process.pid), Watch(memory_bytes=1))
            loop._due[number] = 0.0
            while number in loop._due:
                loop._check_cell(number)
            assert (number in loop._cells) == is_watched_on
            process.kill()
    assert loop._due == {}
    loop._forget(0)


def test_a_cell_that_is_being_killed_is_waited_for(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guest may have to free much memory, or wait for a processor, before init can exit."""

    def refused(self: Ceilings) -> float:
        raise ProcessLookupError(errno.ESRCH, "setns")

    monkeypatch.setattr(Ceilings, "look", refused)
    monkeypatch.setattr(watcher_loop, "_LAST_MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(_Cell, "is_being_killed", lambda self: True)
    with subprocess.Popen(["sleep", "60"]) as process:
        loop._cells[1] = _cell(os.pidfd_open(process.pid), Watch(memory_bytes=1))
        loop._due[1] = 0.0
        for _ in range(3):
            loop._check_cell(1)
            assert loop._due[1] > 0.0
        process.kill()
    loop._check_cell(1)
    assert loop._due == {} and not loop._cells[1].is_blind
    loop._forget(1)


@pytest.mark.parametrize(("flags", "is_killed"), [(0x400004, True), (0x400140, False)])
def test_a_process_that_exits_is_being_killed(tmp_path: Path, flags: int, is_killed: bool) -> None:
    cell = _cell(os.open(os.devnull, os.O_RDONLY), Watch(memory_bytes=1))
    os.close(cell.processes)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "stat").write_text(f"1 (a ) 4 name) S 4 4 4 4 -4 {flags} 4 4 4 4\n")
    cell.processes = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    assert cell.is_being_killed() == is_killed
    cell.close()


def test_a_process_that_runs_is_not_being_killed() -> None:
    cell = _cell(os.open(os.devnull, os.O_RDONLY), Watch(memory_bytes=1))
    assert not cell.is_being_killed()
    os.close(cell.processes)
    cell.processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    assert not cell.is_being_killed()
    cell.close()


def test_a_file_system_that_fails_at_the_end_of_a_cell_ends_no_other(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose server is gone does: the watcher died, and with it the guests of all others."""

    def fail(paths: object) -> disk.DiskUse:
        raise OSError(errno.ENOTCONN, "statvfs")

    cell = _cell(os.open(os.devnull, os.O_RDONLY), Watch(disk_bytes=1, disk_paths=(str(tmp_path),)))
    assert cell.ceilings.measure()
    loop._cells[1] = cell
    monkeypatch.setattr(disk, "filesystem_use", fail)
    loop._end(1, reports=True)
    assert loop._cells == {}


@pytest.mark.parametrize("what", [(Ceilings, "look"), (ceilings, "make_ceilings")], ids=["look", "first look"])
def test_an_unforeseen_error_of_a_look_ends_that_cell_alone(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, what: tuple[object, str]
) -> None:
    """A guest chooses names that are in the files of /proc: what cannot be read must not end the watch over others."""

    def fail(*_: object) -> float:
        raise ValueError("not a number")

    killed: list[int] = []
    monkeypatch.setattr(*what, fail)
    monkeypatch.setattr(watcher_loop.signal, "pidfd_send_signal", lambda process, number: killed.append(number))
    loop._cells[1] = _cell(os.open(os.devnull, os.O_RDONLY), Watch(memory_bytes=1 << 30))
    loop._due[1] = 0.0
    loop._check_cell(1)
    assert (killed, loop._cells, loop._due) == ([9], {}, {})


@pytest.mark.attack("RX-02")
@pytest.mark.parametrize(("memory_mib", "is_prepared"), [(16, True), (512, False)])
def test_who_must_be_looked_at_soon_is_prepared_for_at_once(memory_mib: int, is_prepared: bool) -> None:
    """Loading what a look takes is put off until a run is not short, and never longer than the first look is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = Loop(theirs)
        order = {"watch": 1, "ceilings": list(Watch(memory_bytes=memory_mib << 20)), "most_tasks": 0}
        begun, go = os.pipe()
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        loop._add(order, [others[0], begun, *others[1:]])
        assert loop._is_prepared == is_prepared
        loop._forget(1)
        os.close(go)


def test_who_waits_for_a_measure_does_not_wait_for_what_looks_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    monkeypatch.setattr(Loop, "_prepare", lambda self: (done.append("prepared"), setattr(self, "_is_prepared", True)))
    monkeypatch.setattr(_Cell, "answer_measured", lambda _: done.append("measured"))
    monkeypatch.setattr(Loop, "_look", lambda *_: 1.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    begun, go = os.pipe()
    os.close(go)  # it has begun long ago
    with ours, theirs:
        loop = Loop(theirs)
        watch = Watch(disk_bytes=1 << 20, disk_paths=(str(tmp_path),))
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        loop._add({"watch": 1, "ceilings": list(watch), "most_tasks": 0}, [others[0], begun, *others[1:]])
        thread = threading.Thread(target=loop.run)
        thread.start()
        eventually(lambda: len(done) >= 2)
        ours.close()
        thread.join()
    assert done[:2] == ["measured", "prepared"]
    loop._forget(1)


@pytest.mark.parametrize("is_sure", [True, False])
def test_one_that_is_sure_to_measure_loads_what_that_takes_at_once(
    monkeypatch: pytest.MonkeyPatch, is_sure: bool
) -> None:
    name = "warmcell.cage.watching.ceilings"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(name, raising=False)
    monkeypatch.setattr(Loop, "run", lambda _: os._exit(42 if name in sys.modules else 41))
    started = watcher.Watcher()
    started.start(is_sure=is_sure)
    assert os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]) == (42 if is_sure else 41)
    started.close()


@pytest.mark.attack("RX-02")
@pytest.mark.parametrize("disk_bytes", [0, 1 << 20])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_program_that_is_not_ours_is_looked_at_although_it_never_says_that_it_begins(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_early: bool, disk_bytes: int
) -> None:
    """The Python of an image waits for its job with the descriptor that the watcher waits for."""
    monkeypatch.setattr(_Cell, "answer_measured", lambda _: None)
    monkeypatch.setattr(Ceilings, "look", lambda _: 0.1)
    begun, go = os.pipe()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    watch = Watch(memory_bytes=512 << 20, disk_bytes=disk_bytes, disk_paths=(str(tmp_path),))
    order = {"watch": 1, "ceilings": list(watch), "most_tasks": 0, "is_early": is_early}
    loop._add(order, [others[0], begun, *others[1:]])
    if disk_bytes:
        loop._due[1] = 0.0  # the supervisor has asked
        while not loop._cells[1].is_measured:
            loop._check_cell(1)
    assert loop._waiting == {begun: 1} and (1 in loop._due) == is_early
    loop._forget(1)
    assert not loop._due
    os.close(go)


@pytest.mark.attack("RX-02", "S2-10")
def test_a_program_that_is_not_ours_is_limited_while_it_waits_for_its_job(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its memory from the start, and in what it writes; what the host writes before the job comes does not count."""
    looks: list[bool] = []
    monkeypatch.setattr(Ceilings, "look", lambda self: looks.append(self.is_measured) or 0.1)
    asks, asker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    begun, go = os.pipe()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    watch = Watch(memory_bytes=512 << 20, disk_bytes=1 << 20, disk_paths=(str(tmp_path),))
    order = {"watch": 1, "ceilings": list(watch), "most_tasks": 0, "is_early": True, "answer": {"measured": True}}
    with asks:
        loop._add(order, [others[0], begun, *others[1:], asker.detach()])
        cell = loop._cells[1]
        assert 1 in loop._due

        def check_until_measured() -> disk.DiskUse:
            while not cell.is_measured:
                loop._check_cell(1)
            loop._check_cell(1)
            assert looks.count(False) > 0 and looks[-1]
            looks.clear()
            assert cell.ceilings._disk is not None
            return cell.ceilings._disk._at_start

        before = check_until_measured()
        assert not select.select([asks], [], [], 0)[0]
        (tmp_path / "of the host").write_bytes(b"x")
        send_packet(asks, {"measure": True})
        loop._read_request(next(iter(loop._askers)))
        assert check_until_measured().entries == before.entries + 1
        assert receive_packet(asks)[0] == {"measured": True}
        loop._forget(1)
    os.close(go)


@pytest.mark.parametrize("layers", [(), (Bind("/layer", "/"),)], ids=["no image", "image"])
def test_only_cells_in_an_image_are_looked_at_before_they_begin(layers: tuple[Bind, ...]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    manager_end = watcher.Watcher()
    manager_end._channel, manager_end._is_up = ours, True
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    given = {PROCESSES: files[2], CODE_DIRECTORY: files[3]}
    with theirs:
        plan = LaunchPlan(watch=Watch(memory_bytes=1), layers=layers)
        manager_end.watch(plan, files[0], files[1], given, files[0], {})
        order, received = receive_packet(theirs)
        manager_end.close()
    for descriptor in (*files, *received):
        os.close(descriptor)
    assert order.get("is_early", False) == bool(layers)
