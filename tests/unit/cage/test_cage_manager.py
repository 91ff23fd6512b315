"""The manager and its watcher: every guest that exits is reported, in whatever order messages come."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import fork_child, in_a_fork

from warmcell.cage.cell_shape import CellShape
from warmcell.cage.linux import mounts
from warmcell.cage.linux.descriptors import close_all
from warmcell.cage.manager.cell_maker import without_sources
from warmcell.cage.manager.guest_child import ExitReport, GuestChild, exit_report_of
from warmcell.cage.manager.loop import Manager
from warmcell.cage.manager.zygote_handle import ZygoteHandle
from warmcell.cage.plan import Bind, LaunchPlan
from warmcell.cage.watching.watcher import LOST, NO_VERDICT, Verdict, Watcher
from warmcell.cage.wire import receive_packet, send_packet


class _Guest:
    """A guest that has exited, with its number at the watcher."""

    init_pid = 2**22  # never a pid

    def __init__(self, watch: int | None) -> None:
        self.watch = watch
        self.verdicts: list[Verdict] = []
        self.is_lost = self.is_being_made = self.is_introduced = self.is_ending = self.is_closed = False
        self.poll_descriptor = self.pid = -1
        self.ending = ExitReport(0, 0.0, 0)

    def record_exit(self, ending: ExitReport) -> None:
        self.ending = ending

    def send_identity(self) -> None:
        self.is_introduced = True

    def handle_event(self, watcher: Watcher) -> None:
        """An event."""

    def open_mount_namespace(self) -> list[int]:
        return [os.open(os.devnull, os.O_RDONLY)]

    def end_all(self) -> None:
        """The cell must be killed before its use is reported."""
        assert not self.verdicts and not self.is_ending
        self.is_ending = True

    @property
    def is_exit_notified(self) -> bool:
        return self.poll_descriptor >= 0 and not self.is_ending

    def report(self, verdict: Verdict, zygote: int) -> None:
        self.verdicts.append(verdict)

    def close(self) -> None:
        assert self.verdicts and not self.is_closed
        self.is_closed = True

    def lose_watcher(self) -> None:
        self.is_lost = True


class _Talk:
    """A manager that does nothing but finish guests, and the other end of its watcher's channel."""

    def __init__(self) -> None:
        ours, self.watcher = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.manager: Any = Manager.__new__(Manager)
        self.manager._zygote = SimpleNamespace(pid=0)
        self.manager._watcher = Watcher()
        self.manager._watcher._channel = ours
        self.manager._awaiting_verdict = {}
        self.manager._guests = {}
        self.manager._child_exits, self.ends = os.pipe2(os.O_CLOEXEC)
        self.manager._polls_child_exits, self.manager._to_close = True, []
        self.manager._mounts_to_close, self.manager._exited, self.manager._ending_inits = [], [], set()
        self.manager._reap_ms, self.manager._is_caging, self.manager._is_for_one = 3, True, False
        # Tests before this one may have left children, which are then reaped here.
        self.manager._processes = {}
        self.manager._maker = SimpleNamespace(is_complete=True, take_back=lambda pid: None)
        self.manager._poll = select.poll()
        for descriptor in (ours.fileno(), self.manager._child_exits):
            self.manager._poll.register(descriptor, select.POLLIN)

    def says(self, **message: object) -> None:
        send_packet(self.watcher, message)

    def says_end(self, number: int, peak: int) -> None:
        self.says(end=number, reason="", peak=peak, lost=0.0, met=[], files=-1)

    def is_listening_to_nobody(self) -> bool:
        return self.manager._poll.poll(0) == []


@pytest.fixture
def talk() -> Iterator[_Talk]:
    made = _Talk()
    yield made
    made.watcher.close()
    made.manager._watcher.close()
    for descriptor in (*made.manager._mounts_to_close, made.manager._child_exits, made.ends):
        os.close(descriptor)


def test_a_verdict_that_comes_during_another_is_used(talk: _Talk) -> None:
    """The verdict on the first comes when the second exits, which has none."""
    first, second = _Guest(1), _Guest(2)
    talk.says(looks=1)
    talk.manager._finish(first)
    assert first.verdicts == []
    talk.says_end(1, peak=5)
    talk.manager._finish(second)
    assert second.verdicts == [NO_VERDICT]
    assert first.verdicts == [Verdict("", 5, 0.0)] and talk.manager._awaiting_verdict == {}


def test_only_a_few_mount_namespaces_are_kept_open(talk: _Talk) -> None:
    for _ in range(5):
        talk.manager._finish(_Guest(None))
    assert len(talk.manager._mounts_to_close) == 2 and talk.manager._pause_ms() == 3


def test_descriptors_of_reported_guests_are_closed_when_idle(talk: _Talk) -> None:
    guests = [_Guest(None) for _ in range(3)]
    for guest in guests:
        talk.manager._finish(guest)
    assert [guest.is_closed for guest in guests] == [False, False, True] and talk.manager._pause_ms() == 3
    talk.manager._tidy()
    assert all(guest.is_closed for guest in guests) and talk.manager._to_close == []


@pytest.mark.parametrize(
    ("other", "is_woken"),
    [({}, True), ({"poll_descriptor": 9}, False), ({"poll_descriptor": 9, "is_ending": True}, True), (None, False)],
    ids=["another is not listened to", "another waits", "another is about to end", "nobody"],
)
def test_the_exit_of_an_init_alone_is_not_polled(talk: _Talk, other: dict[str, object] | None, is_woken: bool) -> None:
    """The supervisor waits for that end, and may need the same processor."""
    if other is not None:
        talk.manager._guests[1] = _Guest(None)
        for name, value in other.items():
            setattr(talk.manager._guests[1], name, value)
    talk.manager._finish(_Guest(None))
    os.write(talk.ends, b"!")
    assert bool(talk.manager._poll.poll(0)) is is_woken
    talk.manager._poll_child_exits()
    assert talk.manager._poll.poll(0)


def test_init_is_killed_when_no_guest_process_can_run(talk: _Talk) -> None:
    """The kernel closes the notification descriptor; the guest itself is reaped later."""
    guest, busy = _Guest(None), _Guest(None)
    for each, event in ((guest, select.POLLHUP), (busy, select.POLLIN)):
        reader, writer = os.pipe()
        os.close(writer)
        each.poll_descriptor = reader
        talk.manager._poll.register(reader, select.POLLIN)
        talk.manager._guests[reader] = each
        talk.manager._serve_guests({reader: event})
        os.close(reader)
    assert guest.is_ending and not busy.is_ending and guest.verdicts == []
    talk.manager._finish(guest)
    assert guest.verdicts == [NO_VERDICT] and len(talk.manager._mounts_to_close) == 1


def test_exits_without_a_verdict_are_sent_together(talk: _Talk) -> None:
    for number in (1, 2):
        guest = _Guest(number)
        talk.manager._finish(guest)
        assert guest.verdicts == [NO_VERDICT]
    talk.says(looks=2)  # too late
    talk.manager._receive_from_watcher()
    assert talk.manager._pause_ms() == 3
    talk.manager._tidy()
    message, _ = receive_packet(talk.watcher)
    assert sorted(message["ended"]) == [1, 2] and talk.manager._watcher._looked_at == set()


def test_a_cell_that_takes_long_to_make_is_announced(talk: _Talk) -> None:
    """The supervisor may stop waiting, and needs the pid to kill it."""
    made, ready = _Guest(1), _Guest(2)
    made.is_being_made = True
    talk.manager._guests = {7: made, 8: ready}
    assert talk.manager._pause_ms() == 1000
    talk.manager._tidy()
    assert made.is_introduced and not ready.is_introduced


def test_a_slow_init_is_reaped_at_growing_intervals(talk: _Talk) -> None:
    talk.manager._finish(_Guest(None))
    pauses = []
    for _ in range(12):
        talk.manager._tidy()
        pauses.append(talk.manager._pause_ms())
    assert pauses[:3] == [6, 12, 24] and pauses[-1] == 1000
    talk.manager._ending_inits.clear()
    assert talk.manager._pause_ms() is None


def test_a_verdict_that_comes_alone_is_used(talk: _Talk) -> None:
    first = _Guest(1)
    talk.says(looks=1)
    talk.manager._finish(first)
    talk.says_end(1, peak=5)
    talk.manager._receive_from_watcher()
    assert first.verdicts == [Verdict("", 5, 0.0)]


@pytest.mark.parametrize("is_noticed_by", ["listening", "an end"])
def test_guests_are_killed_when_the_watcher_is_lost(talk: _Talk, is_noticed_by: str) -> None:
    asked, running, ending = _Guest(1), _Guest(2), _Guest(3)
    talk.says(looks=1)
    talk.manager._finish(asked)
    talk.manager._guests = {7: running}
    talk.watcher.close()
    if is_noticed_by == "listening":
        talk.manager._receive_from_watcher()
    talk.manager._finish(ending)
    assert asked.verdicts == ending.verdicts == [LOST]
    assert running.is_lost and talk.is_listening_to_nobody()


def test_a_guest_whose_watcher_died_gets_no_verdict_of_the_next(talk: _Talk) -> None:
    """The next one does not know its cell: it would never answer, or the kill would pass for the guest's own end."""
    looked_at, unseen, kept = _Guest(1), _Guest(2), talk.manager._watcher
    kept._number = 2
    talk.says(looks=1)
    talk.manager._guests = {7: looked_at, 8: unseen}
    talk.manager._receive_from_watcher()
    talk.watcher.close()
    talk.manager._receive_from_watcher()
    kept.start()
    for guest in (looked_at, unseen):
        talk.manager._finish(guest)
    kept.close()
    os.waitpid(kept.pid, 0)
    assert looked_at.is_lost and looked_at.verdicts == unseen.verdicts == [LOST]


@pytest.mark.parametrize("end", [lambda: os._exit(3), lambda: os.kill(os.getpid(), 9), lambda: os.kill(os.getpid(), 3)])
def test_the_exit_of_a_child_is_known_before_it_is_reaped(end: Callable[[], None]) -> None:
    pid = fork_child(lambda: (sum(range(10**6)), end()))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    told = exit_report_of(pid)
    _, status, used = os.wait4(pid, 0)
    assert told == ExitReport(status, pytest.approx(used.ru_utime + used.ru_stime), used.ru_maxrss * 1024)
    assert exit_report_of(pid) is None


def test_a_running_child_has_no_exit_report() -> None:
    reader, writer = os.pipe()
    pid = fork_child(lambda: (os.close(writer), os.read(reader, 1)))
    assert exit_report_of(pid) is None
    os.close(writer)
    os.waitpid(pid, 0)
    os.close(reader)


def test_an_exiting_guest_is_reported_before_it_is_reaped(talk: _Talk) -> None:
    """The supervisor that waits for the report does not wait for the kernel to free the process."""
    pid = fork_child(lambda: os._exit(5))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    guest, other = _Guest(None), _Guest(None)
    guest.is_ending = True
    talk.manager._guests = {pid: guest, 2**22: other}
    guest.pid, other.pid = pid, 2**22
    talk.manager._report_unreaped()
    assert guest.verdicts == [NO_VERDICT] and guest.ending.status == 5 << 8
    assert talk.manager._guests == {2**22: other} and other.verdicts == []
    assert os.waitpid(pid, 0) == (pid, 5 << 8)


def test_an_unwatched_guest_is_reported_at_once(talk: _Talk) -> None:
    guest = _Guest(None)
    talk.manager._finish(guest)
    assert guest.verdicts == [NO_VERDICT]


@pytest.mark.parametrize("is_raised", [True, False], ids=["attached paths", "a new guest"])
def test_a_watcher_that_dies_while_it_starts_is_polled_no_more(talk: _Talk, is_raised: bool) -> None:
    """Its closed descriptor would wake the manager without end, and -1 instead of it would end the manager."""
    running = _Guest(1)
    talk.manager._guests = {7: running}

    def find_dead(watcher: Watcher) -> None:
        watcher.close()
        if is_raised:
            raise OSError(errno.ESRCH, "the watcher did not start")

    with suppress(OSError):
        talk.manager._with_watcher(find_dead)
    assert running.is_lost and talk.is_listening_to_nobody()


def test_plans_that_differ_in_one_guests_own_paths_share_root_and_recipe() -> None:
    system = Bind("/usr", "/usr")
    own = [Bind(f"/tmp/{name}", "/work", True, f"1:{number}", as_owner=True) for number, name in enumerate("ab")]
    first, second = (LaunchPlan(isolation="namespaces", binds=(system, bind)) for bind in own)
    assert without_sources(first, own[:1]) == without_sources(second, own[1:])
    assert without_sources(first, own[:1]).binds == (system, Bind("", "/work", True, "", as_owner=True))
    other = LaunchPlan(isolation="namespaces", binds=(Bind("/opt", "/usr"), own[0]))
    assert without_sources(first, own[:1]) != without_sources(other, own[:1])
    assert without_sources(first, ()) is first


def test_a_zygote_does_not_learn_what_the_root_has() -> None:
    """Otherwise the path of one backend's toolchain would be in the memory of another's guests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        zygote = ZygoteHandle.__new__(ZygoteHandle)
        zygote._recipes, zygote._number, zygote._channel = {}, 0, ours  # type: ignore[assignment]
        shared = (Bind("/opt/me/node", "/opt/me/node"), Bind("/data", "/data"))
        own = (Bind("", "/work", True, as_owner=True), Bind("", "/data/inside", as_owner=True))
        plan = LaunchPlan(isolation="namespaces", binds=(*shared, *own))
        zygote._recipe(CellShape(plan, 0, (("/work", True), ("/data/inside", True))))
        lesson, _ = receive_packet(theirs)
    told = [(bind["target"], bind["source"]) for bind in lesson["plan"]["binds"]]
    assert told == [("/data", ""), ("/work", ""), ("/data/inside", "")]


@pytest.mark.needs("linux")
@pytest.mark.attack("RX-16")
def test_the_report_finds_room_after_denials_that_were_not_read() -> None:
    """A guest can cause any number of them; if its reader stands still, the manager must not wait for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        guest: Any = GuestChild.__new__(GuestChild)
        guest._status, guest._denials_sent, guest._init = ours, {}, None
        for number in range(5000):
            guest._send_denial("syscall", str(number))
        ours.setblocking(False)
        guest._send({"exit": 0})  # without room it would end init, which is None here
        theirs.settimeout(60)
        while "exit" not in (message := receive_packet(theirs)[0]):
            assert message["denied"][0] == "syscall"


@pytest.mark.needs("linux")
@pytest.mark.attack("RX-16")
def test_mounts_that_may_take_long_to_free_are_left_to_init() -> None:
    """The overlay of an image keeps all files that its guest has looked at; and a caller's path must be free at once."""
    guest: Any = GuestChild.__new__(GuestChild)
    guest._init = SimpleNamespace(pid=os.getpid())
    layer, own = Bind("/layer", "/", as_owner=True), Bind("/data", "/data", as_owner=True)
    for plan, most in ((LaunchPlan(), 1), (LaunchPlan(layers=(layer,)), 0), (LaunchPlan(binds=(own,)), 0)):
        guest._plan = plan
        opened = guest.open_mount_namespace()
        close_all(opened)
        assert len(opened) == most


@pytest.mark.needs("linux")
@pytest.mark.attack("RX-16")
@pytest.mark.parametrize("is_large", [True, False])
def test_many_files_of_a_guest_are_freed_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """While the manager freed them, all other cells would wait."""
    for name in ("_MANY_FILES", "_MANY_BYTES"):
        monkeypatch.setattr(mounts, name, -1 if is_large else 1 << 62)
    monkeypatch.setattr(mounts, "_CLOSES_WITHIN", 0.0)

    def close() -> list[int]:
        place = os.open(tmp_path, os.O_PATH)
        mounts.close_file_system(place)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(place)
        return [os.wait()[1]] if is_large else []

    assert in_a_fork(close) == ([0] if is_large else [])
