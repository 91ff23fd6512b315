"""Whether a tree of processes is idle, from files as the kernel writes them."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.helpers import open_descriptors, until

from warmcell.cage.plan import Watch
from warmcell.cage.watching import ceilings, disk, idle_check
from warmcell.cage.watching.idle_check import IdleCheck
from warmcell.cage.watching.patience import Patience, TooLong


class Proc:
    """A fake /proc."""

    def __init__(self, directory: Path) -> None:
        self.path = directory

    def put(self, pid: int, turns: int, state: str = "S", threads: tuple[tuple[int, str], ...] = ()) -> None:
        base = self.path / str(pid)
        self._put(base, turns, state, max(1, len(threads)))
        for number, (thread_turns, thread_state) in enumerate(threads):
            self._put(base / "task" / str(pid + number), thread_turns, thread_state, len(threads))
        (self.path / "net").mkdir(exist_ok=True)
        self.sockets(0)

    def sockets(self, count: int, unix: Iterable[int] = ()) -> None:
        """So many, and the inodes of those that are Unix sockets."""
        (self.path / "net/sockstat").write_text(f"sockets: used {count}\nTCP: inuse 0\n")
        rows = [f"0000: 00000003 00000000 00000000 0001 03 {inode}\n" for inode in unix]
        (self.path / "net/unix").write_text("".join(["Num RefCount Protocol Flags Type St Inode Path\n", *rows]))

    def open_socket(self, pid: int, number: int, in_flight: int = 0) -> int:
        """A socket in the process's table, with so many descriptors in its queue. Returns its inode."""
        place = self.path / str(pid) / "fd" / str(number)
        info = self.path / str(pid) / "fdinfo" / str(number)
        for path in (place, info):
            path.parent.mkdir(exist_ok=True)
        if not place.exists():
            os.mknod(place, stat.S_IFSOCK | 0o600)
        info.write_text(f"pos:\t0\nscm_fds: {in_flight}\n")
        return place.stat().st_ino

    @staticmethod
    def _put(base: Path, turns: int, state: str, threads: int) -> None:
        base.mkdir(parents=True, exist_ok=True)
        rest = ["0"] * 16 + [str(threads)] + ["0"] * 30
        (base / "stat").write_text(f"{base.name} (a) b S) {state} {' '.join(rest)}\n")
        (base / "schedstat").write_text(f"100 200 {turns}\n")


def _network(proc: Proc) -> ceilings.Network:
    return ceilings.Network(str(proc.path / "net"), is_own=True)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_tree_in_which_no_thread_ran_is_idle(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.put(3, 9)
    assert not idle.is_idle([2, 3])
    since = idle.since
    assert idle.is_idle([2, 3])
    assert idle.is_idle([2, 3])
    assert idle.since == since
    proc.put(3, 10)
    assert not idle.is_idle([2, 3])
    assert idle.since > since
    assert idle.is_idle([2, 3])


def test_an_idle_tree_is_checked_by_its_open_files(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.put(3, 9)
    assert not idle.is_still_idle()
    assert [idle.is_idle([2, 3]), idle.is_still_idle()] == [False, False]  # there is nothing to compare with yet
    assert [idle.is_idle([2, 3]), idle.is_still_idle(), idle.is_still_idle()] == [True, True, True]
    proc.put(3, 10)
    assert not idle.is_still_idle()
    assert [idle.is_idle([2, 3]), idle.is_still_idle()] == [False, False]
    assert [idle.is_idle([2, 3]), idle.is_still_idle()] == [True, True]
    idle.close()
    assert not idle.is_still_idle()


def test_few_descriptors_are_open_and_none_is_leaked(proc: Proc) -> None:
    before = open_descriptors()
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    for number in range(2, 12):
        proc.put(number, 7)
    several = list(range(2, 12))
    assert [idle.is_idle(several), idle.is_idle(several), idle.is_still_idle()] == [False, True, False]
    assert open_descriptors() <= before
    assert [idle.is_idle([2]), idle.is_idle([2]), idle.is_idle([2]), idle.is_still_idle()] == [False, True, True, True]
    assert len(open_descriptors() - before) == 1
    idle.close()
    assert open_descriptors() <= before


def test_a_real_process_is_idle_until_it_runs() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        idle = IdleCheck("/proc", "/proc/self/net")
        idle._read_sockets = lambda pids: {}  # type: ignore[method-assign]  # the host has some
        until = time.monotonic() + 30
        while not idle.is_idle([cat.pid]) and time.monotonic() < until:
            time.sleep(0.01)
        assert idle.is_still_idle()
        cat.stdin.write(b"x\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"x\n"
        assert not idle.is_still_idle()
        while not idle.is_idle([cat.pid]) and time.monotonic() < until:
            time.sleep(0.01)
        assert idle.is_still_idle()
        cat.stdin.close()
        cat.wait()
        assert not idle.is_still_idle()
        idle.close()


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_runnable_process_is_not_idle(proc: Proc, state: str) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7, state)
    assert not any(idle.is_idle([2]) for _ in range(3))


def test_every_thread_counts(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7, threads=((7, "S"), (4, "S")))
    assert [idle.is_idle([2]) for _ in range(3)] == [False, True, True]
    proc.put(2, 7, threads=((7, "S"), (5, "S")))
    assert [idle.is_idle([2]) for _ in range(2)] == [False, True]
    proc.put(2, 7, threads=((7, "S"), (5, "R")))
    assert not any(idle.is_idle([2]) for _ in range(3))


def test_another_set_of_processes_is_not_idle(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.put(3, 7)
    assert [idle.is_idle([2]), idle.is_idle([2]), idle.is_idle([2, 3]), idle.is_idle([2])] == [
        False,
        True,
        False,
        False,
    ]


def test_a_tree_with_sockets_of_a_network_is_never_idle(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.sockets(1)
    assert not any(idle.is_idle([2]) for _ in range(3))
    proc.sockets(2, unix=[proc.open_socket(2, 5)])
    assert not any(idle.is_idle([2]) for _ in range(3))


def test_a_tree_with_unix_sockets_is_idle_while_their_queues_hold_the_same_descriptors(proc: Proc) -> None:
    """As the agent of every live cage has."""
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.put(3, 9)
    proc.sockets(2, unix=[proc.open_socket(2, 5), proc.open_socket(3, 6)])
    assert [idle.is_idle([2, 3]) for _ in range(2)] == [False, True]
    assert idle.is_still_idle()
    proc.open_socket(3, 6, in_flight=1)  # sent by a process outside
    assert not idle.is_still_idle()
    assert [idle.is_idle([2, 3]) for _ in range(2)] == [False, True]
    proc.put(3, 10)
    proc.sockets(2, unix=[proc.open_socket(2, 5), proc.open_socket(3, 6)])
    assert [idle.is_idle([2, 3]) for _ in range(2)] == [False, True]
    idle.close()


def test_a_socket_that_no_process_has_open_is_in_flight(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.sockets(2, unix=[proc.open_socket(2, 5), 1])
    assert not any(idle.is_idle([2]) for _ in range(4))


def test_descriptors_are_searched_for_sockets_up_to_a_bound(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.put(2, 7)
    proc.sockets(2, unix=[proc.open_socket(2, 5), proc.open_socket(2, 6)])
    for name, bound in (("_MOST_DESCRIPTORS", 1), ("_MOST_SOCKETS", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(idle_check, name, bound)
            idle = IdleCheck(str(proc.path), str(proc.path / "net"))
            assert not any(idle.is_idle([2]) for _ in range(4))


def test_a_descriptor_that_is_sent_to_a_resting_process_is_noticed(proc: Proc) -> None:
    """By a process outside of the tree, over a socket that the tree gave away."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        given = (ours.fileno(), theirs.fileno())
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=given) as cat:
            assert cat.stdin is not None
            assert cat.stdout is not None
            cat.stdin.write(b"x\n")
            cat.stdin.flush()
            assert cat.stdout.readline() == b"x\n"  # from now on it waits for more
            proc.put(2, 7)
            proc.sockets(2, unix=[os.fstat(each).st_ino for each in given])
            idle = IdleCheck("/proc", str(proc.path / "net"))
            until(lambda: idle.is_idle([cat.pid]))
            assert idle.is_still_idle()
            socket.send_fds(ours, [b"x"], [cat.stdout.fileno()])
            assert not idle.is_still_idle()
            idle.close()


def test_a_tree_is_not_idle_without_schedstat(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 0)
    assert not any(idle.is_idle([2]) for _ in range(3))
    assert not any(idle.is_idle([4]) for _ in range(3))  # nor if its processes are gone


def test_an_idle_tree_is_looked_at_again_when_it_runs_and_after_its_files_were_seen(
    proc: Proc, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[int]] = []
    monkeypatch.setattr(
        ceilings.Ceilings, "_look_at_memory_and_descriptors", lambda self, pids: looks.append(pids) or 0
    )
    monkeypatch.setattr(ceilings, "LONGEST_PAUSE", 3600.0)
    # The file system does not show it: another user has freed as much.
    monkeypatch.setattr(disk, "filesystem_use", lambda paths: disk.DiskUse())
    written = tmp_path_factory.mktemp("written")
    watch = Watch()._replace(memory_bytes=1 << 30, disk_bytes=1 << 20, disk_paths=(str(written),))
    tree = ceilings.Tree(str(proc.path), lambda: [2], lambda pids, patience: 0, watch.disk_paths, _network(proc))
    kept = ceilings.Ceilings(watch, tree)
    proc.put(2, 7)
    kept.measure()
    kept.look()
    (written / "file").write_bytes(bytes(2 << 20))  # when the next walk is not due yet, by a process that sleeps again
    proc.put(2, 8)
    deadline = time.monotonic() + 60
    while not kept.verdict and time.monotonic() < deadline:
        time.sleep(min(0.05, kept.look()))
    assert kept.verdict == "disk"
    assert looks == [[2], [2]]  # memory is as it was at the second look
    looks.clear()
    assert [kept.look() > 0 for _ in range(3)] == [True] * 3
    assert looks == []
    proc.put(2, 9)
    kept.look()
    assert looks == [[2]]


def test_an_idle_tree_is_looked_at_once_more_when_costly_looks_are_due(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it took right before it went to sleep may be missing in the last complete look."""
    looks: list[list[int]] = []
    monkeypatch.setattr(
        ceilings.Ceilings, "_look_at_memory_and_descriptors", lambda self, pids: looks.append(pids) or 0
    )
    monkeypatch.setattr(ceilings, "LONGEST_PAUSE", 0.05)
    tree = ceilings.Tree(str(proc.path), lambda: [2], lambda pids, patience: 0, (), _network(proc))
    kept = ceilings.Ceilings(Watch()._replace(memory_bytes=1 << 30), tree)
    proc.put(2, 7)
    until(lambda: kept.look() and len(looks) == 2)
    assert [kept.look() > 0 for _ in range(3)] == [True] * 3
    assert len(looks) == 2


def test_two_long_looks_in_a_row_end_the_guest(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[bool] = []
    counts_stolen: list[bool] = []

    def stores(pids: list[int], patience: Patience) -> int:
        counts_stolen.append(bool(patience._stolen))
        if slow.pop(0):
            raise TooLong
        return 0

    proc.put(2, 7)
    watch = Watch()._replace(memory_bytes=1 << 30)
    kept = ceilings.Ceilings(watch, ceilings.Tree(str(proc.path), lambda: [2], stores, (), _network(proc)))
    monkeypatch.setattr(ceilings.DescriptorTable, "look", lambda *_: ceilings.DescriptorUse())
    monkeypatch.setattr(ceilings.Mappings, "memory", lambda *_: 0)
    monkeypatch.setattr(ceilings.usage, "processes_memory", lambda *_: ceilings.usage.ProcessMemory(0, 0))
    for turns, is_slow in ((8, True), (9, False), (10, True)):  # a host that stalls now and then
        proc.put(2, turns)
        slow[:] = [is_slow]
        pause = kept.look()
        assert kept.verdict == ""
    assert pause == pytest.approx(0.002)
    # The next one comes soon, whether the guest ran meanwhile or not.
    slow[:] = [True]
    kept.look()
    assert kept.verdict == "memory"
    assert counts_stolen == [False, True, False, True]  # only a look after a long one may end the guest
