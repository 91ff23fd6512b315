"""Addresses, frames, usage and control groups: the parts that are pure or can be given fake files."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.cage import wire
from warmcell.cage.environment import CAGED_ENV
from warmcell.cage.failure import CageError, step
from warmcell.cage.linux import fds, notify, owned
from warmcell.cage.watching import disk, disk_ceiling, patience, usage
from warmcell.cage.watching.descriptors import Descriptors
from warmcell.cage.watching.locks import Locks
from warmcell.cage.watching.mappings import Mappings
from warmcell.cage.watching.patience import Patience, Spent, TooLong, next_look_after
from warmcell.cage.wire import Job

_PATIENCE = Patience(1e9, 1e9)


def _inet(host: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


def _inet6(host: str, port: int) -> bytes:
    head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0)
    return head + socket.inet_pton(socket.AF_INET6, host) + bytes(4)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (_inet("93.184.216.34", 443), "93.184.216.34:443"),
        (_inet("169.254.169.254", 80), "169.254.169.254:80"),
        (_inet("127.0.0.1", 80), ""),
        (_inet("127.5.5.5", 80), ""),
        (_inet("0.0.0.0", 80), ""),
        (_inet("127.0.0.53", 53), "name resolution"),
        (_inet6("2001:db8::1", 443), "[2001:db8::1]:443"),
        (_inet6("::1", 443), ""),
        (_inet6("::", 443), ""),
        (struct.pack("=H", socket.AF_UNIX) + b"/run/docker.sock\0", ""),
        (b"", ""),
        (b"\2\0", ""),
        (_inet6("2001:db8::1", 443)[:20], ""),
    ],
)
def test_destinations_are_named(raw: bytes, text: str) -> None:
    assert notify.describe_address(raw) == text


@given(st.binary(max_size=130))
def test_any_bytes_are_an_address_or_nothing(raw: bytes) -> None:
    assert isinstance(notify.describe_address(raw), str)
    path = notify.unix_path(raw)
    assert path is None or (path and b"\0" not in path)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"\1\0/tmp/s\0junk", b"/tmp/s"),
        (b"\1\0s", b"s"),
        (b"\1\0\0abstract", None),
        (b"\1\0", None),
        (b"\2\0/tmp/s", None),
    ],
)
def test_paths_of_unix_sockets(raw: bytes, path: bytes | None) -> None:
    assert notify.unix_path(raw) == path


def test_packets_carry_messages_and_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        read, write = os.pipe()
        wire.send_packet(ours, {"plan": "x" * 100_000}, [read, write])
        os.close(read)
        os.close(write)
        message, descriptors = wire.receive_packet(theirs)
        assert message == {"plan": "x" * 100_000} and len(descriptors) == 2
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        owned.close_all([*descriptors, *descriptors])
        ours.close()
        assert wire.receive_packet(theirs) == ({}, [])


@pytest.mark.parametrize(("size", "most"), [(200, 1 << 16), (3, 8)], ids=["descriptors", "bytes"])
def test_a_packet_that_is_cut_is_an_error_and_leaves_nothing(size: int, most: int) -> None:
    """Two hundred descriptors are more than there is room for: without a word, the kernel would give us some of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = set(os.listdir("/proc/self/fd"))
        wire.send_packet(ours, {"some": "message"}, [0] * size)
        with pytest.raises(wire.PacketCut):
            wire.receive_packet(theirs, most)
        assert set(os.listdir("/proc/self/fd")) == before


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.binary(max_size=5000), max_size=4),
    st.lists(st.text(st.characters(codec="utf-8")), max_size=4),
)
def test_jobs_arrive_as_they_were_sent(files: dict[str, bytes], argv: list[str]) -> None:
    job = Job("exec", tuple(argv), {"K": "v"}, "/code", files, "main.py")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.encode_job(job))
        assert wire.receive_job(lambda size: os.read(theirs.fileno(), size)) == job


@pytest.mark.parametrize(
    "more",
    [{}, {"is_heard": True}, {"argv": ("a",)}, {"cwd": "/work"}, {"main": "b.py"}, {"files": {}}, {"env": {}}],
    ids=lambda more: next(iter(more), "usual"),
)
@pytest.mark.parametrize("files", [{"b.py": b""}, {"b.py": b"," * 300}, {"a.py": b"1", "b.py": b"2"}])
def test_jobs_like_those_before_them_are_not_taken_for_them(files: dict[str, bytes], more: dict[str, Any]) -> None:
    """What most jobs begin with is written once."""
    for main in ("b.py", "a.py", "b.py"):
        job = Job("python", (), CAGED_ENV, "/code", files, main)._replace(**more)
        assert wire.receive_job(io.BytesIO(wire.encode_job(job)).read) == job


@pytest.mark.parametrize("cut", [0, 2, 4, 20, -1])
def test_half_a_job_is_no_job(cut: int) -> None:
    data = wire.encode_job(Job("python", (), {}, "/code", {"main.py": b"print(1)"}, "main.py"))
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(data[:cut])
        ours.close()
        with pytest.raises(EOFError):
            wire.receive_job(lambda size: os.read(theirs.fileno(), size))


def test_a_step_names_what_failed() -> None:
    with pytest.raises(CageError) as caught, step("open allowed path", "/x"):
        os.open("/nonexistent-warmcell", os.O_RDONLY)
    assert (caught.value.step, caught.value.errno, caught.value.what) == ("open allowed path", 2, "/x")
    assert str(caught.value) == "open allowed path: /x: No such file or directory"


def test_usage_sees_this_process() -> None:
    own = [os.getpid()]
    exact = usage.processes_memory("/proc", own, 0, _PATIENCE)
    quick = usage.processes_memory("/proc", own, 1 << 60, _PATIENCE)  # after the other: it may have grown meanwhile
    assert 1 << 20 < exact <= quick
    assert sum(time.own for time in usage.cpu_times("/proc", own).values()) > 0
    # Nobody has that pid. What sockets and System V objects of this machine hold is counted too, and changes meanwhile.
    assert usage.processes_memory("/proc", [2**22 + 1], 1 << 60, _PATIENCE) < quick


def test_shared_memory_counts_whole_while_a_page_of_it_is_mapped() -> None:
    """In a process that has no other: which of several is alive nobody can tell, and the longest is taken to be."""
    code = """
import mmap, os
from warmcell.cage.watching.mappings import Mappings
from warmcell.cage.watching.patience import Patience
own, patience = [os.getpid()], Patience(60, 600)
before = Mappings().held("/proc", own, patience)
mappings = Mappings()
mappings.asked_for(32 << 20)
with mmap.mmap(-1, 32 << 20):
    assert mappings.held("/proc", own, patience) - before > 31 << 20  # not a page was touched
mappings.asked_for(1 << 20)
assert mappings.held("/proc", own, patience) - before < 1 << 20
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_takes_too_long_to_look_at_is_given_up() -> None:
    with pytest.raises(TooLong):
        Mappings().held("/proc", [os.getpid()], Patience(-1, 60))
    with pytest.raises(TooLong):
        Mappings().held("/proc", [os.getpid()], Patience(60, -1))
    assert Mappings().held("/proc", [2**22 + 1], Patience(-1, -1)) == 0  # nobody has that pid


def test_waiting_for_a_turn_on_a_busy_host_uses_up_no_patience() -> None:
    """Everybody on one processor, as on a host with far too much to do: what was waited for is given back."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        held_up = Patience(60, 0.2)
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        held_up.check()
        with pytest.raises(TooLong):
            time.sleep(0.5)  # held up, and not for want of a processor
            held_up.check()
    finally:
        os.sched_setaffinity(0, allowed)
        for process in crowd:
            process.kill()
            process.wait()


def test_descriptors_that_hold_memory_are_counted() -> None:
    own = [os.getpid()]
    with contextlib.ExitStack() as opened:
        for _ in range(260):
            for end in os.pipe():
                opened.callback(os.close, end)
        held = Descriptors().held("/proc", own, _PATIENCE)
        assert held.memory >= 260 << 16 and held.pipes >= 260
    left, right = socket.socketpair()
    with left, right:
        before = Descriptors().held("/proc", own, _PATIENCE).in_flight
        socket.send_fds(left, [b"x"], [0] * 7)
        assert Descriptors().held("/proc", own, _PATIENCE).in_flight == before + 7


def test_locks_are_counted_for_who_holds_them(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file:
        for at in range(5000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
        assert Locks(lambda owner, pids: owner in pids).held([os.getpid()], _PATIENCE) >= 4900 * 256
        assert Locks(lambda owner, pids: owner in pids).held([1], _PATIENCE) == 0
        assert Locks(lambda owner, pids: False, os.fstat(file.fileno()).st_dev).held([], _PATIENCE) >= 4900 * 256


def test_disk_use_counts_what_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        deep = os.dup(here)
        for _ in range(20):
            os.mkdir("n" * 250, dir_fd=deep)
            below = os.open("n" * 250, os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = below
        with open(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=deep), "wb") as file:
            file.write(bytes(1 << 20))
        os.close(deep)
        found = disk.disk_use([str(tmp_path)], "/proc", [])
        assert 2 << 20 <= found.held < 3 << 20 and found.is_complete
        nameless = os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY)
        os.write(nameless, bytes(1 << 20))
        assert disk.disk_use([str(tmp_path)], "/proc", [os.getpid()]).held >= 3 << 20
        os.close(nameless)
    finally:
        os.close(here)


def test_disk_use_says_when_it_could_not_look(tmp_path: Path) -> None:
    assert not disk.disk_use([str(tmp_path / "nowhere")], "/proc", []).is_complete
    (tmp_path / "link").symlink_to("/")
    assert disk.disk_use([str(tmp_path)], "/proc", []).held < 1 << 20
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    assert disk.disk_use([str(tmp_path)], "/proc", []).held >= 51 * 512


class TestOnABusyHost:
    """Where the watcher mostly waits for its turn, its next look must not come later for that."""

    @pytest.fixture(autouse=True)
    def only_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patience, "_waited_for_a_turn", time.monotonic)

    def test_a_costly_look_is_taken_again_soon(self) -> None:
        spent = Spent()
        time.sleep(0.1)
        assert next_look_after(spent) - time.monotonic() < 0.4

    def test_disk_that_grows_fast_is_walked_through_again_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ceiling = disk_ceiling.DiskCeiling(1 << 20, [str(tmp_path)])
        ceiling.measure(10)
        monkeypatch.setattr(disk.Walk, "go_on", lambda *_: time.sleep(0.2) or True)
        ceiling.look("/proc", [], hides=False)
        time.sleep(0.02)
        assert ceiling._is_due(is_urgent=True)


@pytest.mark.parametrize(
    ("descriptors", "ranges"),
    [
        ([], []),
        ([7], [(7, 7)]),
        ([5, 6, 7], [(5, 7)]),
        ([9, 5, 6, 12, 8], [(5, 6), (8, 9), (12, 12)]),
    ],
)
def test_neighbours_are_closed_at_once(descriptors: list[int], ranges: list[tuple[int, int]]) -> None:
    assert fds.ranges_of(descriptors) == ranges
