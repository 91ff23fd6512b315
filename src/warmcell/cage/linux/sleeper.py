"""The smallest first process: machine code that waits on descriptor 0 and ends when somebody writes to it or lets go.

A pid namespace lives as long as its first process. One that only has to be there needs no interpreter: this one takes
two pages, cannot be looked into (its file may be executed but not read, which makes it undumpable) and leaves the
reaping of orphans to the kernel.
"""

from __future__ import annotations

import os
import signal
import struct
from typing import NoReturn

from . import fds
from .syscalls import MACHINE

_EXECUTABLE_MEMORY = 0x10  # MFD_EXEC, since Linux 6.3; without it some hosts make memory files unexecutable
_LOAD_ADDRESS = 0x400000
_HEADERS = 64 + 2 * 56
_PT_LOAD, _PT_GNU_STACK = 1, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1

#: read(0, stack, 1), then exit_group(0), whatever was read.
_CODE = {
    "x86_64": (62, bytes.fromhex("31c0 31ff 4889e6 ba01000000 0f05 b8e7000000 31ff 0f05")),
    "aarch64": (
        183,
        struct.pack(
            "<8I",
            *(0xD28007E8, 0xD2800000, 0x910003E1, 0xD2800022, 0xD4000001),
            *(0xD2800BC8, 0xD2800000, 0xD4000001),
        ),
    ),
}


def program(machine: str = MACHINE) -> bytes:
    """The whole executable file. Pure."""
    number, code = _CODE[machine]
    size = _HEADERS + len(code)
    entry = _LOAD_ADDRESS + _HEADERS
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, number, 1, entry, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", _PT_LOAD, _READ | _EXECUTE, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 4096)
    stack = struct.pack("<IIQQQQQQ", _PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code


def make() -> int:
    """A descriptor of the program: executable for everybody, readable for nobody."""
    try:
        descriptor = os.memfd_create("init", os.MFD_CLOEXEC | _EXECUTABLE_MEMORY)
    except OSError:  # before Linux 6.3
        descriptor = os.memfd_create("init", os.MFD_CLOEXEC)
    os.write(descriptor, program())
    os.fchmod(descriptor, 0o111)
    return descriptor


def become(descriptor: int, lifeline: int) -> NoReturn:
    """Replaces this process, which keeps the lifeline as its only descriptor."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.dup2(lifeline, 0, inheritable=True)
    os.closerange(1, 3)
    fds.close_on_exec()
    os.execve(descriptor, ["init"], {})
