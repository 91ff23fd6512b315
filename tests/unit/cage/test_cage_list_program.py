"""Guests that become a program: a list as an executable, and jobs that are lists."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from warmcell.cage.cell_shape import receive_locked
from warmcell.cage.failure import CageError
from warmcell.cage.guest_entry import recipe
from warmcell.cage.linux import list_program, native_code
from warmcell.cage.linux.call_list import CallList, Value
from warmcell.cage.linux.list_program import Channels, ExecRefused, ListProgram
from warmcell.cage.program_job import ProgramJob, encode_program_job
from warmcell.cage.wire import GuestJob
from warmcell.cage.zygote.program_starter import ProgramStarter

needs_code = pytest.mark.skipif(not list_program.is_supported(), reason="no machine code for this machine")


@pytest.fixture
def room() -> Iterator[native_code.Arena]:
    made = native_code.reserve_arena()
    assert made is not None
    with closing(made):
        yield made


class Started:
    """The program as a child, and our ends of its channels."""

    def __init__(self, calls: CallList, given: list[int], directory: Path) -> None:
        self.job, job = socket.socketpair()
        self.handoff, handoff = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        began, go = os.pipe()
        file = directory / "program"
        file.write_bytes(list_program.image(calls, given, Channels(job.fileno(), go, handoff.fileno())))
        file.chmod(0o700)
        kept = (job.fileno(), go, handoff.fileno(), *given)
        self._child = subprocess.Popen([file], pass_fds=kept, stdout=subprocess.PIPE)
        for end in (job, handoff):
            end.close()
        os.close(go)
        self._began = began

    def end(self) -> tuple[int, bytes]:
        """Its exit status and output; `go` is closed by then."""
        output, _ = self._child.communicate(timeout=20)
        assert os.read(self._began, 1) == b""
        for end in (self.job, self.handoff):
            end.close()
        os.close(self._began)
        return self._child.returncode, output


def _list_that_writes(room: native_code.Arena) -> CallList:
    calls = CallList(1, room)
    calls.begin_step("write words")
    calls.call("write", Value(0), b"words", 5, expected=5)
    return calls


def _job(directory: Path, *argv: str, files: dict[str, bytes] | None = None, cwd: str = "") -> GuestJob:
    return GuestJob("exec", argv, {"WORD": "k\udce9y"}, str(directory), files or {}, "main", cwd)


@needs_code
def test_it_runs_its_list_and_then_its_job(room: native_code.Arena, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    started = Started(_list_that_writes(room), [writes], tmp_path)
    assert os.read(reads, 9) == b"words"
    deep = f"{tmp_path}/a/b/data"
    large = os.urandom(3_000_000)  # more than a socket holds
    script = b'#!/bin/sh\nprintf %s "$WORD$1"; pwd; cat ../a/b/data; grep SigBlk /proc/self/status'
    job = encode_program_job(
        _job(
            tmp_path, f"{tmp_path}/main", "x y", files={"main": script, deep: large, "empty": b""}, cwd=f"{tmp_path}/a"
        )
    )
    started.job.sendall(job.content)
    assert started.job.recv(100) == b""  # it has begun
    code, output = started.end()
    assert code == 0 and output.startswith(b"k\xe9yx y" + os.fsencode(tmp_path) + b"/a\n" + large)
    assert output.endswith(b"SigBlk:\t0000000000000000\n")
    assert (tmp_path / "main").stat().st_mode & 0o777 == 0o755 and (tmp_path / "empty").read_bytes() == b""
    os.close(reads)
    os.close(writes)


@needs_code
def test_a_step_that_fails_is_named_with_its_errno(room: native_code.Arena, tmp_path: Path) -> None:
    calls = CallList(0, room)
    calls.begin_step("first things")
    calls.call("getpid")
    calls.begin_step("open it", 'a "name"')
    calls.call("openat", -100, b"/no/such", 0, 0)
    started = Started(calls, [], tmp_path)
    with pytest.raises(CageError) as raised:
        receive_locked(started.handoff)
    assert (raised.value.step, raised.value.errno, raised.value.what) == ("open it", 2, 'a "name"')
    assert started.end() == (1, b"")


@needs_code
def test_an_unexpected_result_is_a_failure(room: native_code.Arena, tmp_path: Path) -> None:
    calls = CallList(0, room)
    calls.begin_step("count")
    calls.call("getpid", expected=0)
    started = Started(calls, [], tmp_path)
    with pytest.raises(CageError) as raised:
        receive_locked(started.handoff)
    assert (raised.value.step, raised.value.errno, raised.value.what) == ("count", 0, "unexpected message")
    started.end()


@needs_code
@pytest.mark.parametrize("sent", [0, 10, 60])
def test_it_exits_when_its_channel_is_closed(room: native_code.Arena, tmp_path: Path, sent: int) -> None:
    started = Started(CallList(0, room), [], tmp_path)
    started.job.sendall(encode_program_job(_job(tmp_path, "/bin/true")).content[:sent])
    started.job.shutdown(socket.SHUT_WR)
    assert started.end() == (0, b"")


@needs_code
@pytest.mark.parametrize(
    ("argv", "files", "cwd", "said"),
    [
        (("/no/such",), {}, "", "2 /no/such: No such file or directory"),
        (("{here}",), {}, "", "13 {here}: Permission denied"),
        (("/bin/true",), {"there": b"x"}, "", "0 {here}/there: File exists"),
        (("/bin/true",), {}, "/no/such", "0 /no/such: No such file or directory"),
    ],
)
def test_what_cannot_be_started_is_explained(
    room: native_code.Arena, tmp_path: Path, argv: tuple[str, ...], files: dict[str, bytes], cwd: str, said: str
) -> None:
    (tmp_path / "there").touch()
    here = str(tmp_path)
    started = Started(CallList(0, room), [], tmp_path)
    job = encode_program_job(_job(tmp_path, *(word.format(here=here) for word in argv), files=files, cwd=cwd))
    started.job.sendall(job.content)
    assert job.explain(started.job.recv(100)) == said.format(here=here)
    assert started.end()[0] == 126


@needs_code
def test_a_prelude_passes_the_channels_to_its_program(room: native_code.Arena, tmp_path: Path) -> None:
    """As descriptors 3 and 4, and under no other number: the program reads the next job itself."""
    started = Started(CallList(0, room), [], tmp_path)
    script = "exec 5<&3; read word <&5; echo $word; exec 3<&- 4>&- 5<&-; cd /proc/self/fd && echo *"
    prelude = GuestJob("prelude", ("/bin/sh", "-c", script), {}, str(tmp_path), {})
    started.job.sendall(encode_program_job(prelude).content)
    started.job.sendall(b"next\n")
    assert started.job.recv(100) == b""
    code, output = started.end()
    word, descriptors = output.decode().splitlines()
    assert (code, word) == (0, "next")
    others = set(descriptors.split()) - {"0", "1", "2", "3"}  # 3 is the directory that is being listed
    assert len(others) == 1, "only the handoff, which a recipe would have closed"


def test_invalid_failures_are_explained() -> None:
    job = ProgramJob(b"", ((False, "the program"),))
    words = [
        (0).to_bytes(8, "little") + (3).to_bytes(8, "little"),
        b"\xff" * 8 + (-12).to_bytes(8, "little", signed=True),
    ]
    assert [job.explain(told) for told in words] == [
        "0 the program: No space left on device",
        "0 the job: Cannot allocate memory",
    ]
    assert job.explain(b"short").startswith("0 the job:")
    no_errno = bytes(8) + (-1 << 40).to_bytes(8, "little", signed=True)
    assert job.explain(no_errno) == "0 the job: unexpected answer"


@pytest.mark.parametrize("job", [_job(Path("/code"), "bare"), GuestJob("python", ("/x",), {}, "/code", {})])
def test_other_jobs_cannot_be_lists(job: GuestJob) -> None:
    with pytest.raises(ValueError, match="not the path of a program"):
        encode_program_job(job)


def test_a_list_outgrows_its_arena(room: native_code.Arena) -> None:
    calls = CallList(0, room)
    assert calls.buffer(b"small").raw == b"small\0" and calls.arena is room
    large = bytes(2_000_000)
    assert calls.buffer(large).raw == large + b"\0" and calls.arena is None


def test_arenas_do_not_overlap() -> None:
    made = [native_code.reserve_arena() for _ in range(3)]
    assert len({each.base for each in made if each is not None}) == 3
    for each in made:
        assert each is not None
        each.close()


@needs_code
def test_guests_are_forked_where_the_executable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class GuestSteps:
        """A recipe."""

        def program(self, given: recipe.GuestDescriptors, kept: list[int]) -> ListProgram:
            return program

    class Refused(ListProgram):
        def __init__(self) -> None:
            """Without a file."""

        def start(self) -> int:
            raise ExecRefused("fork guest", 13, "")

    program = Refused()
    programs = ProgramStarter(is_caging=True)
    monkeypatch.setattr(programs, "_send_children_to", CallList(1).prepare([0]))
    arena = programs.reserve_arena()
    assert arena is not None
    arena.close()
    assert programs.start(1, GuestSteps(), list(range(8))) is None  # type: ignore[arg-type]
    assert programs.reserve_arena() is None and programs.start(1, GuestSteps(), list(range(8))) is None  # type: ignore[arg-type]
