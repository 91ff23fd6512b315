"""The smallest first process: machine code that waits on descriptor 0 and ends when somebody writes to it or lets go.

A pid namespace lives as long as its first process. One that only has to be there needs no interpreter: this one takes
two pages, makes itself undumpable so that nobody can look into it, and leaves the reaping of orphans to the kernel.
"""

from __future__ import annotations

import os
import struct

from ..light import signal
from . import fds
from .call_list import CallList, Value
from .syscalls import MACHINE

_LOAD_ADDRESS = 0x400000
_HEADERS = 64 + 2 * 56
_PT_LOAD, _PT_GNU_STACK = 1, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_AT_EMPTY_PATH = 0x1000
_SIG_IGN = 1

#: machine: (its number in executable files, the bytes that machine_code/sleeper_<machine>.S assembles to)
MACHINE_CODE = {
    "x86_64": (
        62,
        "b89d000000bf0400000031f60f05b803000000bf010000000f0531c031ff4889e6ba010000000f05b8e700000031ff0f05",
    ),
    "aarch64": (
        183,
        "e81480d2800080d2010080d2010000d4280780d2200080d2010000d4e80780d2000080d2e1030091220080d2010000d4"
        "c80b80d2000080d2010000d4",
    ),
}


def program(machine: str = MACHINE) -> bytes:
    """The whole executable file. Pure."""
    number, *text = MACHINE_CODE[machine]
    code = bytes.fromhex("".join(str(line) for line in text))
    size = _HEADERS + len(code)
    entry = _LOAD_ADDRESS + _HEADERS
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, number, 1, entry, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", _PT_LOAD, _READ | _EXECUTE, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 4096)
    stack = struct.pack("<IIQQQQQQ", _PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code


def make(directory: str) -> int:
    """A descriptor of the program, as a file without a name on a file system of ours: some hosts execute no memory."""
    writable = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o700)
    try:
        os.write(writable, program())
        os.fchmod(writable, 0o111)
        # What somebody may still write to cannot be executed.
        return os.open(f"/proc/self/fd/{writable}", os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(writable)


def become(calls: CallList, file: Value, lifeline: Value, awake: Value) -> None:
    """The end of a list: this process is replaced, and keeps two descriptors; it closes `awake` when it is shielded."""
    calls.part("put init to sleep")
    # Ignored, so that the kernel reaps what the guest leaves behind.
    calls.call("rt_sigaction", signal.SIGCHLD, struct.pack("=4Q", _SIG_IGN, 0, 0, 0), None, 8)
    calls.call("dup3", lifeline, 0, 0)
    calls.call("dup3", awake, 1, 0)
    calls.call("close", 2, tolerated=9)
    fds.end_on_exec(calls)
    arguments = struct.pack("=QQ", calls.address(calls.buffer(b"init")), 0)
    calls.call("execveat", file, b"", arguments, bytes(8), _AT_EMPTY_PATH)
