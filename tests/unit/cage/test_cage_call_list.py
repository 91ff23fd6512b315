"""Lists of system calls: machine code and Python do the same, and the machine code is what its source assembles to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.cage.failure import CageError
from warmcell.cage.linux import call_list
from warmcell.cage.linux.call_list import CallList, Field, Value

_SOURCES = Path(call_list.__file__).with_name("machine_code")
_ASSEMBLE = Path(__file__).parents[3] / "scripts/assemble-machine-code"


@pytest.fixture(params=["machine code", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "Python":
        monkeypatch.setattr(call_list, "_machine_code", lambda: call_list._MachineCode(None, None))
    elif call_list._machine_code().run is None:
        pytest.skip("memory may not be executed here")
    yield request.param


def test_results_are_arguments_of_later_calls(way: str, tmp_path: Path) -> None:
    calls = CallList(1)
    file = calls.call("openat", -100, os.fsencode(tmp_path / "made"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    calls.call("write", file, b"words", 5, expected=5)
    calls.call("write", Value(0), b"more", 4, expected=4)
    calls.call("close", file)
    reads, writes = os.pipe()
    for _ in range(2):
        calls.prepare([writes]).run()
    assert (tmp_path / "made").read_bytes() == b"words"
    assert os.read(reads, 100) == b"moremore"
    os.close(reads)
    os.close(writes)


def test_a_result_is_stored_in_a_buffer(way: str) -> None:
    import ctypes

    calls = CallList()
    buffer = ctypes.create_string_buffer(8)
    number = calls.call("getpid", into=Field(buffer, 4))
    prepared = calls.prepare([])
    prepared.run()
    assert prepared.result(number) == os.getpid()
    assert int.from_bytes(buffer.raw[4:8], "little") == os.getpid() and buffer.raw[:4] == bytes(4)


def test_the_first_failure_ends_the_list_and_names_its_step(way: str, tmp_path: Path) -> None:
    calls = CallList()
    calls.begin_step("look", "here")
    calls.call("getpid")
    calls.begin_step("open", "/nowhere")
    calls.call("openat", -100, b"/nonexistent-warmcell", os.O_RDONLY, 0)
    calls.begin_step("make", "there")
    calls.call("mkdirat", -100, os.fsencode(tmp_path / "never"), 0o700)
    with pytest.raises(CageError) as caught:
        calls.prepare([]).run()
    assert (caught.value.step, caught.value.errno, caught.value.what) == ("open", 2, "/nowhere")
    assert not (tmp_path / "never").exists()


def test_only_the_allowed_error_is_ignored(way: str) -> None:
    calls = CallList()
    calls.begin_step("open")
    calls.call("openat", -100, b"/nonexistent-warmcell", os.O_RDONLY, 0, allowed_errno=2)
    calls.prepare([]).run()
    calls.call("openat", -100, b"/nonexistent-warmcell", os.O_RDONLY, 0, allowed_errno=13)
    with pytest.raises(CageError):
        calls.prepare([]).run()


def test_an_unexpected_result_stops_the_list(way: str) -> None:
    calls = CallList(1)
    calls.begin_step("read", "the end")
    calls.call("read", Value(0), bytes(8), 4, expected=0)
    reads, writes = os.pipe()
    os.write(writes, b"x")
    with pytest.raises(CageError, match="read"):
        calls.prepare([reads]).run()
    os.close(writes)
    calls.prepare([reads]).run()
    os.close(reads)


def test_a_process_without_memory_of_its_own_runs_a_list() -> None:
    if not call_list.can_spawn():
        pytest.skip("memory may not be executed here")
    calls = CallList(1)
    number = calls.call("getpid")
    calls.call("write", Value(0), b"here", 4, expected=4)
    calls.call("exit", 7)
    reads, writes = os.pipe()
    prepared = calls.prepare([writes])
    spawned = call_list.spawn(0, prepared)
    assert os.waitpid(spawned.pid, 0) == (spawned.pid, 7 << 8)
    assert os.read(reads, 10) == b"here" and prepared.result(number) == spawned.pid
    for descriptor in (reads, writes, spawned.pidfd):
        os.close(descriptor)


def test_an_unknown_call_is_refused_when_the_list_is_written() -> None:
    with pytest.raises(OSError, match="no_such_call"):
        CallList().call("no_such_call")


def test_the_machine_code_is_what_its_source_assembles_to(tmp_path: Path) -> None:
    """Of every machine that there is an assembler for; CI has one for all."""
    done = subprocess.run([_ASSEMBLE, tmp_path], capture_output=True, text=True, check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    require(len(made) == len([*_SOURCES.glob("*.S")]), f"there are not all assemblers here, only for {done.stdout}")
    assert made == {path.name: path.read_bytes() for path in _SOURCES.glob("*.bin")}


@pytest.mark.parametrize("machine", sorted(call_list.SPAWN_OFFSETS))
def test_spawn_is_at_its_offset(machine: str, tmp_path: Path) -> None:
    require(shutil.which("llvm-mc") is not None and shutil.which("llvm-nm") is not None, "there is no LLVM here")
    made, source = tmp_path / "made.o", _SOURCES / f"call_list-{machine}.S"
    subprocess.run(["llvm-mc", f"--triple={machine}-linux-gnu", "--filetype=obj", "-o", made, source], check=True)
    symbols = subprocess.run(["llvm-nm", made], capture_output=True, text=True, check=True).stdout
    places = {line.split()[2]: int(line.split()[0], 16) for line in symbols.splitlines()}
    assert (places["run"], places["spawn"]) == (0, call_list.SPAWN_OFFSETS[machine])


def test_no_machine_code_is_hidden_in_python() -> None:
    package = Path(call_list.__file__).parents[2]
    hidden = re.compile(r"\"[0-9a-f]{40,}\"")
    assert [str(path) for path in package.rglob("*.py") if hidden.search(path.read_text())] == []
