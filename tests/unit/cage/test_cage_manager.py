"""The manager and its watcher: every guest that has ended is reported on, in whatever order words come."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.cage.cell import Shape
from warmcell.cage.manager.cells import without_sources
from warmcell.cage.manager.guest_children import Ending, ending_of
from warmcell.cage.manager.serve import Manager
from warmcell.cage.manager.zygote_child import ZygoteChild
from warmcell.cage.plan import Bind, LaunchPlan
from warmcell.cage.watching.watcher import LOST, NO_VERDICT, Verdict, Watcher
from warmcell.cage.wire import receive_packet, send_packet


class _Guest:
    """One that has ended, by its number with the watcher."""

    init_pid = 2**22  # nobody's

    def __init__(self, watch: int | None) -> None:
        self.watch = watch
        self.verdicts: list[Verdict] = []
        self.is_lost = self.is_being_made = self.is_introduced = self.is_ending = self.is_closed = False
        self.listens_to = self.pid = -1
        self.ending = Ending(0, 0.0, 0)

    def ended(self, ending: Ending) -> None:
        self.ending = ending

    def introduce(self) -> None:
        self.is_introduced = True

    def attend(self, watcher: Watcher) -> None:
        """It has something to say."""

    def hold_mounts(self) -> list[int]:
        return [os.open(os.devnull, os.O_RDONLY)]

    def end_all(self) -> None:
        """What it left behind has to be gone before anybody says what it used."""
        assert not self.verdicts and not self.is_ending
        self.is_ending = True

    @property
    def will_be_heard(self) -> bool:
        return self.listens_to >= 0 and not self.is_ending

    def report(self, verdict: Verdict) -> None:
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
        self.manager._watcher = Watcher()
        self.manager._watcher._channel = ours
        self.manager._asked_for = {}
        self.manager._guests = {}
        self.manager._ends, self.ends = os.pipe2(os.O_CLOEXEC)
        self.manager._hears_ends, self.manager._reported = True, []
        self.manager._lingering, self.manager._ended, self.manager._ending_inits = [], [], set()
        self.manager._reap_ms, self.manager._is_caging, self.manager._is_for_one = 3, True, False
        # Tests before this one may have left children, which are then reaped here.
        self.manager._processes = {}
        self.manager._maker = SimpleNamespace(is_complete=True, ids=SimpleNamespace(give_back=lambda pid: None))
        self.manager._poll = select.poll()
        for descriptor in (ours.fileno(), self.manager._ends):
            self.manager._poll.register(descriptor, select.POLLIN)

    def says(self, **message: object) -> None:
        send_packet(self.watcher, message)

    def says_end(self, number: int, peak: int) -> None:
        self.says(end=number, reason="", peak=peak, lost=0.0, met=[])

    def is_listening_to_nobody(self) -> bool:
        return self.manager._poll.poll(0) == []


@pytest.fixture
def talk() -> Iterator[_Talk]:
    made = _Talk()
    yield made
    made.watcher.close()
    made.manager._watcher.let_go()
    for descriptor in (*made.manager._lingering, made.manager._ends, made.ends):
        os.close(descriptor)


def test_a_last_word_is_heeded_though_it_was_heard_for_another(talk: _Talk) -> None:
    """The word on the first comes just when the second ends, of whom there is nothing to say."""
    first, second = _Guest(1), _Guest(2)
    talk.says(looks=1)
    talk.manager._finish(first)
    assert first.verdicts == []
    talk.says_end(1, peak=5)
    talk.manager._finish(second)
    assert second.verdicts == [NO_VERDICT]
    assert first.verdicts == [Verdict("", 5, 0.0)] and talk.manager._asked_for == {}


def test_no_more_than_a_few_wait_for_their_mounts_to_be_taken_down(talk: _Talk) -> None:
    for _ in range(5):
        talk.manager._finish(_Guest(None))
    assert len(talk.manager._lingering) == 2 and talk.manager._pause_ms() == 3


def test_descriptors_of_who_was_reported_on_are_closed_when_nobody_waits(talk: _Talk) -> None:
    guests = [_Guest(None) for _ in range(3)]
    for guest in guests:
        talk.manager._finish(guest)
    assert [guest.is_closed for guest in guests] == [False, False, True] and talk.manager._pause_ms() == 3
    talk.manager._tidy()
    assert all(guest.is_closed for guest in guests) and talk.manager._reported == []


@pytest.mark.parametrize(
    ("other", "is_woken"),
    [({}, True), ({"listens_to": 9}, False), ({"listens_to": 9, "is_ending": True}, True), (None, False)],
    ids=["another is not listened to", "another waits", "another is about to end", "nobody"],
)
def test_only_the_end_of_an_init_wakes_nobody(talk: _Talk, other: dict[str, object] | None, is_woken: bool) -> None:
    """The supervisor, who waits for that end, may need the same processor."""
    if other is not None:
        talk.manager._guests[1] = _Guest(None)
        for name, value in other.items():
            setattr(talk.manager._guests[1], name, value)
    talk.manager._finish(_Guest(None))
    os.write(talk.ends, b"!")
    assert bool(talk.manager._poll.poll(0)) is is_woken
    talk.manager._listen_to_ends()
    assert talk.manager._poll.poll(0)


def test_init_ends_as_soon_as_nobody_is_left_who_could_run(talk: _Talk) -> None:
    """The kernel says so by an end that poll tells of; the guest itself is reaped later."""
    guest, busy = _Guest(None), _Guest(None)
    for each, event in ((guest, select.POLLHUP), (busy, select.POLLIN)):
        reader, writer = os.pipe()
        os.close(writer)
        each.listens_to = reader
        talk.manager._poll.register(reader, select.POLLIN)
        talk.manager._guests[reader] = each
        talk.manager._attend({reader: event})
        os.close(reader)
    assert guest.is_ending and not busy.is_ending and guest.verdicts == []
    talk.manager._finish(guest)
    assert guest.verdicts == [NO_VERDICT] and len(talk.manager._lingering) == 1


def test_ends_of_which_there_is_nothing_to_say_are_told_together(talk: _Talk) -> None:
    for number in (1, 2):
        guest = _Guest(number)
        talk.manager._finish(guest)
        assert guest.verdicts == [NO_VERDICT]
    talk.says(looks=2)  # too late
    talk.manager._hear_watcher()
    assert talk.manager._pause_ms() == 3
    talk.manager._tidy()
    message, _ = receive_packet(talk.watcher)
    assert sorted(message["ended"]) == [1, 2] and talk.manager._watcher._looked_at == set()


def test_who_is_being_made_for_long_is_told_of(talk: _Talk) -> None:
    """Somebody may wait no longer, and can end only what has a name."""
    made, ready = _Guest(1), _Guest(2)
    made.is_being_made = True
    talk.manager._guests = {7: made, 8: ready}
    assert talk.manager._pause_ms() == 1000
    talk.manager._tidy()
    assert made.is_introduced and not ready.is_introduced


def test_an_init_that_takes_its_time_is_looked_for_less_and_less_often(talk: _Talk) -> None:
    talk.manager._finish(_Guest(None))
    pauses = []
    for _ in range(12):
        talk.manager._tidy()
        pauses.append(talk.manager._pause_ms())
    assert pauses[:3] == [6, 12, 24] and pauses[-1] == 1000
    talk.manager._ending_inits.clear()
    assert talk.manager._pause_ms() is None


def test_a_last_word_that_comes_alone_is_heeded(talk: _Talk) -> None:
    first = _Guest(1)
    talk.says(looks=1)
    talk.manager._finish(first)
    talk.says_end(1, peak=5)
    talk.manager._hear_watcher()
    assert first.verdicts == [Verdict("", 5, 0.0)]


@pytest.mark.parametrize("is_noticed_by", ["listening", "an end"])
def test_nothing_goes_on_without_the_watcher(talk: _Talk, is_noticed_by: str) -> None:
    asked, running, ending = _Guest(1), _Guest(2), _Guest(3)
    talk.says(looks=1)
    talk.manager._finish(asked)
    talk.manager._guests = {7: running}
    talk.watcher.close()
    if is_noticed_by == "listening":
        talk.manager._hear_watcher()
    talk.manager._finish(ending)
    assert asked.verdicts == ending.verdicts == [LOST]
    assert running.is_lost and talk.is_listening_to_nobody()


@pytest.mark.parametrize("end", [lambda: os._exit(3), lambda: os.kill(os.getpid(), 9), lambda: os.kill(os.getpid(), 3)])
def test_how_a_child_ended_is_known_before_it_is_reaped(end: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        sum(range(10**6))
        end()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    told = ending_of(pid)
    _, status, used = os.wait4(pid, 0)
    assert told == Ending(status, pytest.approx(used.ru_utime + used.ru_stime), used.ru_maxrss * 1024)
    assert ending_of(pid) is None


def test_who_has_not_ended_has_no_ending() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    assert ending_of(pid) is None
    os.close(writer)
    os.waitpid(pid, 0)
    os.close(reader)


def test_who_is_ending_is_reported_on_before_it_is_reaped(talk: _Talk) -> None:
    """Whoever waits for the report does not wait for the kernel to take the process to pieces."""
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    guest, other = _Guest(None), _Guest(None)
    guest.is_ending = True
    talk.manager._guests = {pid: guest, 2**22: other}
    guest.pid, other.pid = pid, 2**22
    talk.manager._report_unreaped()
    assert guest.verdicts == [NO_VERDICT] and guest.ending.status == 5 << 8
    assert talk.manager._guests == {2**22: other} and other.verdicts == []
    assert os.waitpid(pid, 0) == (pid, 5 << 8)


def test_who_is_not_watched_is_reported_on_at_once(talk: _Talk) -> None:
    guest = _Guest(None)
    talk.manager._finish(guest)
    assert guest.verdicts == [NO_VERDICT]


def test_plans_that_differ_in_one_guests_own_paths_share_root_and_recipe() -> None:
    system = Bind("/usr", "/usr")
    own = [Bind(f"/tmp/{name}", "/work", True, f"1:{number}", as_owner=True) for number, name in enumerate("ab")]
    first, second = (LaunchPlan(isolation="namespaces", binds=(system, bind)) for bind in own)
    assert without_sources(first, own[:1]) == without_sources(second, own[1:])
    assert without_sources(first, own[:1]).binds == (system, Bind("", "/work", True, "", as_owner=True))
    other = LaunchPlan(isolation="namespaces", binds=(Bind("/opt", "/usr"), own[0]))
    assert without_sources(first, own[:1]) != without_sources(other, own[:1])
    assert without_sources(first, ()) is first


def test_a_zygote_is_told_of_no_place_that_the_root_has_already() -> None:
    """Where one backend's toolchain is would be in the memory of another's guests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        zygote = ZygoteChild.__new__(ZygoteChild)
        zygote._recipes, zygote._number, zygote._channel = {}, 0, ours  # type: ignore[assignment]
        shared = (Bind("/opt/me/node", "/opt/me/node"), Bind("/data", "/data"))
        own = (Bind("", "/work", True, as_owner=True), Bind("", "/data/inside", as_owner=True))
        plan = LaunchPlan(isolation="namespaces", binds=(*shared, *own))
        zygote._recipe(Shape(plan, 0, (("/work", True), ("/data/inside", True))))
        lesson, _ = receive_packet(theirs)
    told = [(bind["target"], bind["source"]) for bind in lesson["plan"]["binds"]]
    assert told == [("/data", ""), ("/work", ""), ("/data/inside", "")]
