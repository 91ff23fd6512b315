"""What the cage takes of `ctypes` without loading it is the same as what `ctypes` has."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys

import pytest
from tests.conftest import ROOT

from warmcell.cage.linux import foreign

NAMES = ["c_char", "c_int", "c_int64", "c_long", "c_size_t", "c_uint32", "c_uint64", "c_ulong", "c_void_p"]


@pytest.mark.parametrize("name", NAMES)
def test_a_type_holds_what_its_namesake_holds(name: str) -> None:
    own, real = getattr(foreign, name), getattr(ctypes, name)
    assert foreign.addressof(own()) and ctypes.sizeof(own) == ctypes.sizeof(real)
    assert own().value == real().value
    if name != "c_char":
        assert [own(value).value for value in (-1, 7, 1 << 40)] == [real(value).value for value in (-1, 7, 1 << 40)]


@pytest.mark.parametrize("content", [b"", b"abc", b"a\0b\0"])
def test_buffers_are_made_alike(content: bytes) -> None:
    assert foreign.create_string_buffer(content).raw == ctypes.create_string_buffer(content).raw
    size = len(content) or 1
    assert foreign.create_string_buffer(content, size).raw == ctypes.create_string_buffer(content, size).raw


def test_functions_answer_and_say_what_was_wrong() -> None:
    libc = foreign.CDLL(None, use_errno=True)
    libc.syscall.restype = foreign.c_long
    assert libc.getpid() == os.getpid()
    assert libc.close(-1) == -1 and foreign.get_errno() == errno.EBADF
    with pytest.raises(AttributeError):
        _ = libc.no_such_function


def test_memory_is_read_and_written() -> None:
    buffer = foreign.create_string_buffer(b"four")
    foreign.write_memory(foreign.addressof(buffer) + 1, b"ai")
    assert foreign.read_memory(foreign.addressof(buffer), 4) == b"fair"


def test_nothing_of_the_cage_loads_the_other_half() -> None:
    program = (
        "import sys; import warmcell.cage.manager.serve, warmcell.cage.zygote.serve; print('ctypes' in sys.modules)"
    )
    command = [sys.executable, "-S", "-c", program]
    told = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
