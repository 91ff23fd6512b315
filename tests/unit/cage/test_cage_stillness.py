"""Whether a tree of processes was still, from files as the kernel makes them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from warmcell.cage.plan import Watch
from warmcell.cage.watching import ceilings, disk_ceiling
from warmcell.cage.watching.patience import Patience, TooLong
from warmcell.cage.watching.stillness import Stillness


class Proc:
    """A /proc with threads that run when they are told to."""

    def __init__(self, directory: Path) -> None:
        self.path = directory

    def put(self, pid: int, turns: int, state: str = "S", threads: tuple[tuple[int, str], ...] = ()) -> None:
        base = self.path / str(pid)
        self._put(base, turns, state, max(1, len(threads)))
        for number, (thread_turns, thread_state) in enumerate(threads):
            self._put(base / "task" / str(pid + number), thread_turns, thread_state, len(threads))
        (base / "net").mkdir(exist_ok=True)
        self.sockets(pid, 0)

    def sockets(self, pid: int, count: int) -> None:
        (self.path / str(pid) / "net/sockstat").write_text(f"sockets: used {count}\nTCP: inuse 0\n")

    @staticmethod
    def _put(base: Path, turns: int, state: str, threads: int) -> None:
        base.mkdir(parents=True, exist_ok=True)
        rest = ["0"] * 16 + [str(threads)] + ["0"] * 30
        (base / "stat").write_text(f"{base.name} (a) b S) {state} {' '.join(rest)}\n")
        (base / "schedstat").write_text(f"100 200 {turns}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_who_had_no_turn_was_still(proc: Proc) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 7)
    proc.put(3, 9)
    assert not still.is_kept([2, 3])
    began = still.began
    assert still.is_kept([2, 3])
    assert still.is_kept([2, 3])
    assert still.began == began
    proc.put(3, 10)
    assert not still.is_kept([2, 3])
    assert still.began > began
    assert still.is_kept([2, 3])


def test_stillness_that_goes_on_is_asked_of_those_who_were_there(proc: Proc) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 7)
    proc.put(3, 9)
    assert not still.goes_on()
    assert [still.is_kept([2, 3]), still.goes_on()] == [False, False]  # what was before that nobody knows
    assert [still.is_kept([2, 3]), still.goes_on(), still.goes_on()] == [True, True, True]
    proc.put(3, 10)
    assert not still.goes_on()
    assert [still.is_kept([2, 3]), still.goes_on()] == [False, False]
    assert [still.is_kept([2, 3]), still.goes_on()] == [True, True]
    still.close()
    assert not still.goes_on()


def test_stillness_holds_few_descriptors_and_leaves_none(proc: Proc) -> None:
    before = len(os.listdir("/proc/self/fd"))
    still = Stillness(str(proc.path))
    for number in range(2, 12):
        proc.put(number, 7)
    several = list(range(2, 12))
    assert [still.is_kept(several), still.is_kept(several), still.goes_on()] == [False, True, False]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [still.is_kept([2]), still.is_kept([2]), still.is_kept([2]), still.goes_on()] == [False, True, True, True]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    still.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_stillness_of_a_real_process_ends_with_its_turn() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        still = Stillness("/proc")
        still._has_sockets = lambda pid: False  # type: ignore[method-assign]  # the host has some
        until = time.monotonic() + 30
        while not still.is_kept([cat.pid]) and time.monotonic() < until:
            time.sleep(0.01)
        assert still.goes_on()
        cat.stdin.write(b"x\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"x\n"
        assert not still.goes_on()
        while not still.is_kept([cat.pid]) and time.monotonic() < until:
            time.sleep(0.01)
        assert still.goes_on()
        cat.stdin.close()
        cat.wait()
        assert not still.goes_on()
        still.close()


@pytest.mark.parametrize("state", ["R", "D"])
def test_who_has_a_processor_or_waits_for_one_is_not_still(proc: Proc, state: str) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 7, state)
    assert not any(still.is_kept([2]) for _ in range(3))


def test_every_thread_counts(proc: Proc) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 7, threads=((7, "S"), (4, "S")))
    assert [still.is_kept([2]) for _ in range(3)] == [False, True, True]
    proc.put(2, 7, threads=((7, "S"), (5, "S")))
    assert [still.is_kept([2]) for _ in range(2)] == [False, True]
    proc.put(2, 7, threads=((7, "S"), (5, "R")))
    assert not any(still.is_kept([2]) for _ in range(3))


def test_others_make_it_another_tree(proc: Proc) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 7)
    proc.put(3, 7)
    assert [still.is_kept([2]), still.is_kept([2]), still.is_kept([2, 3]), still.is_kept([2])] == [
        False,
        True,
        False,
        False,
    ]


def test_what_a_socket_holds_grows_while_its_owner_sleeps(proc: Proc) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 7)
    proc.sockets(2, 1)
    assert not any(still.is_kept([2]) for _ in range(3))


def test_a_kernel_that_counts_no_turns_never_says_so(proc: Proc) -> None:
    still = Stillness(str(proc.path))
    proc.put(2, 0)
    assert not any(still.is_kept([2]) for _ in range(3))
    assert not any(still.is_kept([4]) for _ in range(3))  # nor one whose processes are gone


def test_a_still_tree_is_looked_at_again_only_when_it_stirs_and_after_its_files_were_seen(
    proc: Proc, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[int]] = []
    monkeypatch.setattr(ceilings.Ceilings, "_look_at_what_is_held", lambda self, pids: looks.append(pids) or 0)
    # How full the file system is shows nothing of it: somebody else has made as much room.
    monkeypatch.setattr(disk_ceiling, "of_filesystems", lambda paths: disk_ceiling.DiskUse())
    written = tmp_path_factory.mktemp("written")
    watch = Watch()._replace(memory_bytes=1 << 30, disk_bytes=1 << 20, disk_paths=(str(written),))
    tree = ceilings.Tree(str(proc.path), lambda: [2], lambda pids, patience: 0, watch.disk_paths)
    kept = ceilings.Ceilings(watch, tree)
    proc.put(2, 7)
    kept.measure()
    kept.look()
    (written / "file").write_bytes(bytes(2 << 20))  # when the next walk is not due yet, by one who sleeps again
    proc.put(2, 8)
    until = time.monotonic() + 10
    while not kept.verdict and time.monotonic() < until:
        time.sleep(min(0.05, kept.look()))
    assert kept.verdict == "disk"
    looks.clear()
    assert [kept.look() > 0 for _ in range(3)] == [True] * 3
    assert looks == []
    proc.put(2, 9)
    kept.look()
    assert looks == [[2]]


def test_a_look_that_takes_too_long_is_held_against_a_guest_when_the_next_one_does_too(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: list[bool] = []

    def stores(pids: list[int], patience: Patience) -> int:
        if slow.pop(0):
            raise TooLong
        return 0

    proc.put(2, 7)
    watch = Watch()._replace(memory_bytes=1 << 30)
    kept = ceilings.Ceilings(watch, ceilings.Tree(str(proc.path), lambda: [2], stores, ()))
    monkeypatch.setattr(ceilings.Descriptors, "held", lambda *_: ceilings.Held())
    monkeypatch.setattr(ceilings.Mappings, "held", lambda *_: 0)
    monkeypatch.setattr(ceilings.usage, "processes_memory", lambda *_: 0)
    for turns, is_slow in ((8, True), (9, False), (10, True)):  # a host that stalls now and then
        proc.put(2, turns)
        slow[:] = [is_slow]
        pause = kept.look()
        assert kept.verdict == ""
    assert pause == pytest.approx(0.002)
    # The next one comes soon, whether anybody ran meanwhile or not.
    slow[:] = [True]
    kept.look()
    assert kept.verdict == "memory"
