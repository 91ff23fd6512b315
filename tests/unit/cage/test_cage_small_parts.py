"""Addresses, frames, usage and control groups: the parts that are pure or can be given fake files."""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import in_a_fork, open_descriptors, until

from warmcell.cage import wire
from warmcell.cage.environment import CAGED_ENV
from warmcell.cage.failure import CageError, step
from warmcell.cage.linux import fds, notify
from warmcell.cage.linux.descriptors import close_all
from warmcell.cage.linux.guest_files import TimeLimit
from warmcell.cage.plan import Watch
from warmcell.cage.watching import ceilings, disk, kernel_memory, patience, usage
from warmcell.cage.watching.kernel_memory import DescriptorTable, Locks, Mappings
from warmcell.cage.watching.patience import Patience, Spent, TooLong, next_look_after
from warmcell.cage.wire import GuestJob

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
        close_all([*descriptors, *descriptors])
        ours.close()
        assert wire.receive_packet(theirs) == ({}, [])


@pytest.mark.parametrize(("size", "most"), [(253, 1 << 16), (3, 8)], ids=["descriptors", "bytes"])
def test_a_truncated_packet_is_an_error_and_leaks_nothing(size: int, most: int) -> None:
    """As many descriptors as the kernel sends do not fit: it would silently deliver some of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = open_descriptors()
        wire.send_packet(ours, {"some": "message"}, [0] * size)
        with pytest.raises(wire.PacketTruncated):
            wire.receive_packet(theirs, most)
        assert open_descriptors() <= before


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.binary(max_size=5000), max_size=4),
    st.lists(st.text(st.characters(codec="utf-8")), max_size=4),
)
def test_jobs_arrive_as_they_were_sent(files: dict[str, bytes], argv: list[str]) -> None:
    job = GuestJob("exec", tuple(argv), {"K": "v"}, "/code", files, "main.py")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.encode_job(job))
        assert wire.receive_job(lambda size: os.read(theirs.fileno(), size)) == job


@pytest.mark.parametrize(
    "more",
    [{}, {"is_streamed": True}, {"argv": ("a",)}, {"cwd": "/work"}, {"main": "b.py"}, {"files": {}}, {"env": {}}],
    ids=lambda more: next(iter(more), "usual"),
)
@pytest.mark.parametrize("files", [{"b.py": b""}, {"b.py": b"," * 300}, {"a.py": b"1", "b.py": b"2"}])
def test_cached_headers_do_not_mix_up_jobs(files: dict[str, bytes], more: dict[str, Any]) -> None:
    """The headers of most jobs are cached."""
    for main in ("b.py", "a.py", "b.py"):
        job = GuestJob("python", (), CAGED_ENV, "/code", files, main)._replace(**more)
        assert wire.receive_job(io.BytesIO(wire.encode_job(job)).read) == job


@pytest.mark.parametrize("cut", [0, 2, 4, 20, -1])
def test_a_truncated_job_is_refused(cut: int) -> None:
    data = wire.encode_job(GuestJob("python", (), {}, "/code", {"main.py": b"print(1)"}, "main.py"))
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
    exact = usage.processes_memory("/proc", own, 0, _PATIENCE).own
    quick = usage.processes_memory("/proc", own, 1 << 60, _PATIENCE).own  # after the other: it may have grown meanwhile
    assert 1 << 20 < exact <= quick
    assert sum(time.own for time in usage.cpu_times("/proc", own).values()) > 0
    # That pid does not exist. What sockets and System V objects of this machine hold is counted too, and changes meanwhile.
    assert usage.processes_memory("/proc", [2**22 + 1], 1 << 60, _PATIENCE).own < quick


@pytest.mark.attack("S2-06")
@pytest.mark.parametrize(("pages", "tables"), [(200, 0), (100, 64)])
def test_pages_that_processors_keep_back_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int, tables: int
) -> None:
    """A guest that moves from one processor to the next hides pages from the kernel's cheap counters."""
    process = tmp_path / "2"
    process.mkdir()
    (process / "status").write_text(f"VmRSS:\t    1024 kB\nVmPTE:\t {tables << 10} kB\n")
    (process / "smaps_rollup").write_text(f"Rss:      {pages << 10} kB\nPss_Anon: {pages << 10} kB\n")
    network = ceilings.Network(str(tmp_path / "net"), False)
    tree = ceilings.Tree(str(tmp_path), lambda: [2], lambda pids, patience: 0, (), network)
    monkeypatch.setattr(ceilings.DescriptorTable, "look", lambda *_: ceilings.DescriptorUse())
    monkeypatch.setattr(ceilings.Mappings, "memory", lambda *_: 0)
    verdicts = []
    for kept_back in (1 << 20, 128 << 20):
        monkeypatch.setattr(usage, "KEPT_BACK", kept_back)
        kept = ceilings.Ceilings(Watch(memory_bytes=128 << 20), tree)
        kept.look()
        verdicts.append(kept.verdict)
    assert verdicts == ["", "memory"]


def test_shared_memory_counts_whole_while_a_page_of_it_is_mapped() -> None:
    """In a process that has no other: which of several is alive cannot be seen, and the longest is taken to be."""
    code = """
import mmap, os
from warmcell.cage.watching.kernel_memory import Mappings
from warmcell.cage.watching.patience import Patience
own, patience = [os.getpid()], Patience(60, 600)
before = Mappings().memory("/proc", own, patience)
mappings = Mappings()
mappings.note_shared_memory(32 << 20)
with mmap.mmap(-1, 32 << 20):
    assert mappings.memory("/proc", own, patience) - before > 31 << 20  # not a page was touched
mappings.note_shared_memory(1 << 20)
assert mappings.memory("/proc", own, patience) - before < 1 << 20
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.attack("RX-01")
def test_shared_memory_counts_though_a_look_came_before_its_mapping() -> None:
    """A guest that is delayed between its request and the mapping, however long, and lets go of all but a page."""
    code = """
import mmap, os, time
from warmcell.cage.watching import kernel_memory as module
from warmcell.cage.watching.patience import Patience
own, patience, size = [os.getpid()], Patience(60, 600), 32 << 20
before = module.Mappings().memory("/proc", own, patience)
for forgotten in (False, True):
    mappings = module.Mappings()
    mappings.note_shared_memory(size)
    mappings._noted -= module._NOTED_SECONDS * forgotten
    for _ in range(2):
        mappings._next_look = 0
        assert mappings.memory("/proc", own, patience) - before < 1 << 20
    with mmap.mmap(-1, size):
        mappings._next_look = 0
        assert mappings.memory("/proc", own, patience) - before > size - (1 << 20)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.attack("S2-06")
@pytest.mark.claim("WC-RX-2")
def test_all_requests_for_shared_memory_count_while_a_process_hides_its_mappings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one does whose program may be executed and not read."""
    monkeypatch.setattr(kernel_memory, "_MOST_LENGTHS", 3)
    monkeypatch.setattr(usage, "read_maps", lambda base, patience: iter(()))
    mappings = Mappings()

    def look() -> int:
        mappings._next_look, mappings._noted = 0.0, -60.0  # long ago
        return mappings.memory("/proc", [process.pid], _PATIENCE)

    with subprocess.Popen(["sleep", "600"]) as process:
        for size in (5, 1, 2, 4, 3):
            mappings.note_shared_memory(size << 20)
        try:
            assert [look(), look()] == [15 << 20] * 2
        finally:
            process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look() == 0  # one that is ending has no mappings
    mappings.note_shared_memory(1 << 20)
    mappings._is_hidden = True
    assert mappings._shared_memory() == 1 << 20  # the others are forgotten


def test_what_takes_too_long_to_look_at_is_given_up() -> None:
    with pytest.raises(TooLong):
        Mappings().memory("/proc", [os.getpid()], Patience(-1, 60))
    with pytest.raises(TooLong):
        Mappings().memory("/proc", [os.getpid()], Patience(60, -1))
    assert Mappings().memory("/proc", [2**22 + 1], Patience(-1, -1)) == 0  # no process has that pid


def test_waiting_for_a_turn_on_a_busy_host_uses_up_no_patience() -> None:
    """All processes on one processor, as on an overloaded host: time spent waiting does not count."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        held_up = Patience(60, 1.0)
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        held_up.check()
        with pytest.raises(TooLong):
            time.sleep(2.5)  # held up, and not for want of a processor
            held_up.check()
    finally:
        os.sched_setaffinity(0, allowed)
        for process in crowd:
            process.kill()
            process.wait()


def test_time_that_the_host_takes_uses_up_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen = [0, 0]
    monkeypatch.setattr(patience, "_stolen_ticks", lambda: stolen.copy())
    held_up, unaware = Patience(60, -1.0, counts_stolen=True), Patience(60, -1.0)
    with pytest.raises(TooLong):
        held_up.check()
    monkeypatch.setattr(patience, "_EXCUSED_SECONDS", 60.0)
    stolen[1] = 60 * os.sysconf("SC_CLK_TCK")
    held_up.check()
    stolen[1] = 0  # not read again at once: on a large machine that takes the processor time of the look
    held_up.check()
    held_up._excused_until = 0.0
    with pytest.raises(TooLong):
        held_up.check()
    stolen[1] = 60 * os.sysconf("SC_CLK_TCK")
    with pytest.raises(TooLong):
        unaware.check()
    monkeypatch.undo()
    assert len(patience._stolen_ticks()) == os.sysconf("SC_NPROCESSORS_ONLN")


def test_descriptors_that_hold_memory_are_counted() -> None:
    own = [os.getpid()]
    with contextlib.ExitStack() as opened:
        for _ in range(260):
            for end in os.pipe():
                opened.callback(os.close, end)
        held = DescriptorTable("/proc", "/proc/self/net", False).look(own, _PATIENCE)
        assert held.memory >= 260 << 16 and held.pipes >= 260
    left, right = socket.socketpair()
    with left, right:
        before = DescriptorTable("/proc", "/proc/self/net", False).look(own, _PATIENCE).in_flight
        socket.send_fds(left, [b"x"], [0] * 7)
        assert DescriptorTable("/proc", "/proc/self/net", False).look(own, _PATIENCE).in_flight == before + 7


@pytest.mark.attack("S2-06")
def test_pipes_count_with_the_pages_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe holds sixteen of them: a megabyte on an aarch64 kernel with large pages."""
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 16)
    with contextlib.ExitStack() as opened:
        for _ in range(50):
            for end in os.pipe():
                opened.callback(os.close, end)
        held = DescriptorTable("/proc", "/proc/self/net", False).look([os.getpid()], _PATIENCE)
    assert held.pipes >= 50 and held.memory >= held.pipes << 20


@pytest.mark.attack("S3-03")
def test_queues_of_unix_sockets_count_in_a_network_of_others() -> None:
    own = [os.getpid()]
    before = DescriptorTable("/proc", "/proc/self/net", False).look(own, _PATIENCE).memory
    with contextlib.ExitStack() as opened:
        for _ in range(100):
            for end in socket.socketpair():
                opened.enter_context(end)
        held = DescriptorTable("/proc", "/proc/self/net", False).look(own, _PATIENCE).memory - before
    assert held >= usage.unix_queues(200) > 200 * usage.SOCKET


def test_locks_are_counted_for_who_holds_them(tmp_path: Path) -> None:
    """At some look: while other programs release many, the kernel leaves some out of its list."""
    with (tmp_path / "x").open("w") as file:
        for at in range(5000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
        until(lambda: Locks(lambda owner, pids: owner in pids).memory([os.getpid()], _PATIENCE) >= 4900 * 256)
        assert Locks(lambda owner, pids: owner in pids).memory([1], _PATIENCE) == 0
        device = os.fstat(file.fileno()).st_dev
        until(lambda: Locks(lambda owner, pids: False, device).memory([], _PATIENCE) >= 4900 * 256)


@pytest.mark.attack("S2-10")
def test_the_device_of_a_directory_is_the_one_that_its_mapped_files_show(tmp_path: Path) -> None:
    """On btrfs it is not the one of stat(), and files that are mapped and have no name were not found."""
    (tmp_path / "file").write_bytes(bytes(4096))
    here = os.open(tmp_path, os.O_RDONLY)
    with open(tmp_path / "file", "rb") as file, mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ):
        shown = [
            line.split()[3]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if line.endswith(f"{tmp_path}/file")
        ]
        assert shown == [disk.device_in_maps(here, -1).decode()]
    os.close(here)


def _disk_use(paths: list[str], pids: list[int]) -> disk.DiskUse:
    walk = disk.Walk(paths)
    assert walk.advance(3600)
    return walk.result("/proc", pids)


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
        found = _disk_use([str(tmp_path)], [])
        assert 2 << 20 <= found.held < 3 << 20 and found.has_all_names
        nameless = os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY)
        os.write(nameless, bytes(1 << 20))
        assert _disk_use([str(tmp_path)], [os.getpid()]).held >= 3 << 20
        os.close(nameless)
    finally:
        os.close(here)


@pytest.mark.needs("linux")
def test_calls_on_directories_of_the_host_are_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of a slow server may fail each call that a signal interrupts, and Python repeats it."""
    limited: list[bool] = []

    def is_limited() -> bool:
        return signal.getitimer(signal.ITIMER_REAL)[1] > 0

    def note_limit(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def with_note(path: Any) -> Any:
            limited.append(is_limited())
            return call(path)

        return with_note

    def measure() -> list[bool]:
        for name in ("scandir", "statvfs"):
            monkeypatch.setattr(os, name, note_limit(getattr(os, name)))
        with TimeLimit():
            _disk_use([str(tmp_path)], [])
            return [*limited, is_limited()]

    assert in_a_fork(measure) == [False, False, True]


def test_disk_use_says_when_it_could_not_look(tmp_path: Path) -> None:
    assert not _disk_use([str(tmp_path / "nowhere")], []).has_all_names
    (tmp_path / "link").symlink_to("/")
    assert _disk_use([str(tmp_path)], []).held < 1 << 20
    for number in range(50):
        (tmp_path / str(number)).mkdir()
    assert _disk_use([str(tmp_path)], []).held >= 51 * 512


@pytest.mark.attack("S3-02")
def test_a_process_that_is_ending_hides_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes unreadable before it is gone. The rest of the file system is not the guest's because of that."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    listed = os.listdir

    def unreadable(path: Any = ".") -> list[str]:
        if str(path).endswith("/fd"):
            raise PermissionError(13, "permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", unreadable)
    assert not _disk_use([str(tmp_path)], [process.pid]).has_all_unlinked
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert _disk_use([str(tmp_path)], [process.pid]).has_all_unlinked
    process.wait()


@pytest.mark.attack("S2-10")
@pytest.mark.claim("WC-RX-3")
def test_a_process_whose_first_thread_has_ended_hides_no_files(tmp_path: Path) -> None:
    """It is a zombie then that shows no descriptors, and its other threads go on writing."""
    code = """
import ctypes, os, sys, threading, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_TMPFILE)
os.write(file, bytes(1 << 20))
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""
    before = _disk_use([str(tmp_path)], [])
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as process:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
            assert not usage.is_ending("/proc", process.pid)
            found = _disk_use([str(tmp_path)], [process.pid])
        finally:
            process.kill()
    assert found.held - before.held >= 1 << 20


@pytest.mark.attack("S3-02")
def test_files_that_others_write_do_not_count(tmp_path: Path) -> None:
    """Even where the guest's own files cannot all be seen: no more than it wrote itself."""
    start = disk.DiskUse(held=10, filesystem=1000)
    hidden = disk.DiskUse(held=20, filesystem=1000 + (700 << 20), has_all_unlinked=False)
    assert hidden.growth_since(start).held == 10
    assert hidden._replace(written=float(5 << 20)).growth_since(start).held == 5 << 20
    assert hidden._replace(written=float("inf")).growth_since(start).held == 700 << 20
    started_hidden = start._replace(has_all_names=False)
    assert hidden._replace(has_all_names=False).growth_since(started_hidden).held == 10


def test_a_file_that_is_removed_during_a_walk_hides_nothing(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / str(number)).write_bytes(b"x")
    walk = disk.Walk([str(tmp_path)])
    walk.advance(-1)  # stops in the middle of the directory
    for file in tmp_path.iterdir():
        file.unlink()
    assert walk.advance(10)
    assert walk.result("/proc", []).has_all_names


@pytest.mark.attack("S3-02")
def test_written_bytes_are_those_of_the_processes() -> None:
    written = disk.WrittenBytes()
    code = "import os, sys; f = os.open(os.devnull, os.O_WRONLY); os.write(f, bytes(3 << 20)); print(1); input()"
    with subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = written.look("/proc", [process.pid])
        assert 3 << 20 <= first < 4 << 20
        process.kill()
    assert written.look("/proc", []) == first  # what a process wrote still counts when it is gone


@pytest.mark.attack("S2-10")
def test_hidden_files_in_memory_count_when_they_are_written_through_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts such pages of a tmpfs for no process, so that a guest seemed to have written nothing."""
    monkeypatch.setattr(disk, "_DEEPEST", 0)  # the file is deeper than a walk goes
    code = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 16 << 20)
mapped = mmap.mmap(file, 16 << 20)
for place in range(0, 16 << 20, 4096):
    mapped[place] = 1
print(1)
input()
"""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        below = Path(directory, "below")
        below.mkdir()
        ceiling = disk.DiskCeiling(4 << 20, [directory])
        assert ceiling.measure(60)
        command = [sys.executable, "-Buc", code, str(below / "file")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                process.stdout.readline()
                until(lambda: ceiling.look("/proc", [process.pid], hides=False) and ceiling.is_over)
            finally:
                process.kill()


class TestGuestProcesses:
    """The manager's own processes can be in a cell's /proc; what they show is the host's."""

    def test_a_process_of_our_own_user_namespace_is_not_a_guest(self) -> None:
        users = os.stat("/proc/self/ns/user").st_ino
        assert os.getpid() not in ceilings.guest_pids("/proc", users)
        assert os.getpid() in ceilings.guest_pids("/proc", users + 1)

    def test_a_network_that_is_shared_with_us_is_not_a_guests(self) -> None:
        assert not ceilings.has_own_network("/proc/self")

    def test_sockets_of_the_host_do_not_count(self, tmp_path: Path) -> None:
        """A cell on the host's network: 300 sockets of ours would be 60 MB of a guest's memory."""
        descriptors = [os.open("/proc", os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)]
        pairs = [socket.socketpair() for _ in range(150)]
        try:
            made = ceilings.make_ceilings(Watch(memory_bytes=1 << 30), 0, -1, *descriptors)
            assert not made._tree.network.is_own
        finally:
            close_all(descriptors)
            for pair in pairs:
                for end in pair:
                    end.close()


class TestOnABusyHost:
    """Where the watcher mostly waits for its turn, its next look must not come later for that."""

    @pytest.fixture(autouse=True)
    def only_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patience, "_run_queue_delay", time.monotonic)

    def test_a_costly_look_is_taken_again_soon(self) -> None:
        spent = Spent()
        time.sleep(0.1)
        assert next_look_after(spent) - time.monotonic() < 0.4

    def test_disk_that_grows_fast_is_walked_through_again_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ceiling = disk.DiskCeiling(1 << 20, [str(tmp_path)])
        ceiling.measure(10)
        monkeypatch.setattr(disk.Walk, "advance", lambda *_: time.sleep(0.2) or True)
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
