"""What the cage uses in place of `ctypes` behaves like `ctypes`."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys

import pytest
from tests.conftest import ROOT

from warmcell.cage.linux import fast_ctypes

NAMES = ["c_char", "c_int", "c_int64", "c_long", "c_size_t", "c_uint32", "c_uint64", "c_ulong", "c_void_p"]


@pytest.mark.parametrize("name", NAMES)
def test_a_type_holds_the_same_values_as_in_ctypes(name: str) -> None:
    own, real = getattr(fast_ctypes, name), getattr(ctypes, name)
    assert fast_ctypes.addressof(own()) and ctypes.sizeof(own) == ctypes.sizeof(real)
    assert own().value == real().value
    if name != "c_char":
        assert [own(value).value for value in (-1, 7, 1 << 40)] == [real(value).value for value in (-1, 7, 1 << 40)]


@pytest.mark.parametrize("content", [b"", b"abc", b"a\0b\0"])
def test_buffers_are_equal_to_those_of_ctypes(content: bytes) -> None:
    assert fast_ctypes.create_string_buffer(content).raw == ctypes.create_string_buffer(content).raw
    size = len(content) or 1
    assert fast_ctypes.create_string_buffer(content, size).raw == ctypes.create_string_buffer(content, size).raw


def test_functions_return_results_and_errno() -> None:
    libc = fast_ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = fast_ctypes.c_long
    assert libc.getpid() == os.getpid()
    assert libc.close(-1) == -1 and fast_ctypes.get_errno() == errno.EBADF
    with pytest.raises(AttributeError):
        _ = libc.no_such_function


def test_memory_is_read_and_written() -> None:
    buffer = fast_ctypes.create_string_buffer(b"four")
    fast_ctypes.write_memory(fast_ctypes.addressof(buffer) + 1, b"ai")
    assert fast_ctypes.read_memory(fast_ctypes.addressof(buffer), 4) == b"fair"


def test_the_cage_does_not_load_ctypes() -> None:
    program = "import sys; import warmcell.cage.manager.loop, warmcell.cage.zygote.loop; print('ctypes' in sys.modules)"
    command = [sys.executable, "-S", "-c", program]
    told = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
