"""Lists of system calls: the machine code and Python carry out the same, and the machine code is what its source says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcell.cage.failure import CageError
from warmcell.cage.linux import call_list, list_program, sleeper
from warmcell.cage.linux.call_list import CallList, Field, Value

_SOURCES = Path(call_list.__file__).with_name("machine_code")
_TOOLS = {"x86_64": ("as", "objcopy"), "aarch64": ("aarch64-linux-gnu-as", "aarch64-linux-gnu-objcopy")}
if os.uname().machine == "aarch64":
    _TOOLS = {"aarch64": ("as", "objcopy")}


@pytest.fixture(params=["machine code", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "Python":
        monkeypatch.setattr(call_list, "_machine_code", lambda: call_list._MachineCode(None, None))
    elif call_list._machine_code().run is None:
        pytest.skip("memory may not be executed here")
    yield request.param


def test_results_lead_to_later_calls(way: str, tmp_path: Path) -> None:
    calls = CallList(1)
    file = calls.call("openat", -100, os.fsencode(tmp_path / "made"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    calls.call("write", file, b"words", 5, wanted=5)
    calls.call("write", Value(0), b"more", 4, wanted=4)
    calls.call("close", file)
    reads, writes = os.pipe()
    for _ in range(2):
        calls.prepare([writes]).run()
    assert (tmp_path / "made").read_bytes() == b"words"
    assert os.read(reads, 100) == b"moremore"
    os.close(reads)
    os.close(writes)


def test_a_result_is_put_where_a_later_call_finds_it(way: str) -> None:
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
    calls.part("look", "here")
    calls.call("getpid")
    calls.part("open", "/nowhere")
    calls.call("openat", -100, b"/nonexistent-warmcell", os.O_RDONLY, 0)
    calls.part("make", "there")
    calls.call("mkdirat", -100, os.fsencode(tmp_path / "never"), 0o700)
    with pytest.raises(CageError) as caught:
        calls.prepare([]).run()
    assert (caught.value.step, caught.value.errno, caught.value.what) == ("open", 2, "/nowhere")
    assert not (tmp_path / "never").exists()


def test_an_error_can_be_tolerated_but_no_other(way: str) -> None:
    calls = CallList()
    calls.part("open")
    calls.call("openat", -100, b"/nonexistent-warmcell", os.O_RDONLY, 0, tolerated=2)
    calls.prepare([]).run()
    calls.call("openat", -100, b"/nonexistent-warmcell", os.O_RDONLY, 0, tolerated=13)
    with pytest.raises(CageError):
        calls.prepare([]).run()


def test_only_the_wanted_result_will_do(way: str) -> None:
    calls = CallList(1)
    calls.part("read", "the end")
    calls.call("read", Value(0), bytes(8), 4, wanted=0)
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
    calls.call("write", Value(0), b"here", 4, wanted=4)
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


_WITH_CODE = {
    "call_list": call_list.MACHINE_CODE,
    "sleeper": sleeper.MACHINE_CODE,
    "list_program": list_program.MACHINE_CODE,
}


@pytest.mark.parametrize(
    ("name", "machine"),
    [(name, machine) for name, table in _WITH_CODE.items() for machine in sorted(_TOOLS) if machine in table],
)
def test_the_machine_code_is_what_its_source_assembles_to(name: str, machine: str, tmp_path: Path) -> None:
    assembler, copier = _TOOLS[machine]
    if shutil.which(assembler) is None:
        pytest.skip(f"there is no {assembler} here")
    made, code = tmp_path / "made.o", tmp_path / "code"
    subprocess.run([assembler, "-o", made, _SOURCES / f"{name}_{machine}.S"], check=True)
    subprocess.run([copier, "-O", "binary", "-j", ".text", made, code], check=True)
    assert "".join(str(line) for line in _WITH_CODE[name][machine][1:]) == code.read_bytes().hex()
