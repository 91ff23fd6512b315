"""Whether a tree of processes is idle, from files as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from warmcell.cage.plan import Watch
from warmcell.cage.watching import ceilings, disk_ceiling
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

    def sockets(self, count: int) -> None:
        (self.path / "net/sockstat").write_text(f"sockets: used {count}\nTCP: inuse 0\n")

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
    before = len(os.listdir("/proc/self/fd"))
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    for number in range(2, 12):
        proc.put(number, 7)
    several = list(range(2, 12))
    assert [idle.is_idle(several), idle.is_idle(several), idle.is_still_idle()] == [False, True, False]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [idle.is_idle([2]), idle.is_idle([2]), idle.is_idle([2]), idle.is_still_idle()] == [False, True, True, True]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    idle.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_real_process_is_idle_until_it_runs() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        idle = IdleCheck("/proc", "/proc/self/net")
        idle._has_sockets = lambda: False  # type: ignore[method-assign]  # the host has some
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


def test_a_tree_with_sockets_is_never_idle(proc: Proc) -> None:
    idle = IdleCheck(str(proc.path), str(proc.path / "net"))
    proc.put(2, 7)
    proc.sockets(1)
    assert not any(idle.is_idle([2]) for _ in range(3))


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
    # The file system does not show it: another user has freed as much.
    monkeypatch.setattr(disk_ceiling, "filesystem_use", lambda paths: disk_ceiling.DiskUse())
    written = tmp_path_factory.mktemp("written")
    watch = Watch()._replace(memory_bytes=1 << 30, disk_bytes=1 << 20, disk_paths=(str(written),))
    tree = ceilings.Tree(str(proc.path), lambda: [2], lambda pids, patience: 0, watch.disk_paths, _network(proc))
    kept = ceilings.Ceilings(watch, tree)
    proc.put(2, 7)
    kept.measure()
    kept.look()
    (written / "file").write_bytes(bytes(2 << 20))  # when the next walk is not due yet, by a process that sleeps again
    proc.put(2, 8)
    until = time.monotonic() + 60
    while not kept.verdict and time.monotonic() < until:
        time.sleep(min(0.05, kept.look()))
    assert kept.verdict == "disk"
    looks.clear()
    assert [kept.look() > 0 for _ in range(3)] == [True] * 3
    assert looks == []
    proc.put(2, 9)
    kept.look()
    assert looks == [[2]]


def test_two_long_looks_in_a_row_end_the_guest(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[bool] = []

    def stores(pids: list[int], patience: Patience) -> int:
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
