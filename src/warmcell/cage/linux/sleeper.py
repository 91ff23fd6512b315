"""A minimal init: machine code that waits on descriptor 0 and exits when that is written to or closed.

A pid namespace lives as long as its init. This one takes two pages, makes itself undumpable so that no guest can read
its memory, and leaves the reaping of orphans to the kernel.
"""

from __future__ import annotations

import os
import struct

from ..fast_imports import signal
from . import fds
from .call_list import CallList, Value
from .descriptors import closing_fd
from .native_code import EXECUTE, LOAD_ADDRESS, READ, Segment, elf_headers, headers_size, read_code
from .syscalls import MACHINE

_AT_EMPTY_PATH = 0x1000
_SIG_IGN = 1


def program(machine: str = MACHINE) -> bytes:
    """The content of the executable."""
    code, start = read_code("sleeper", machine), headers_size(1)
    segment = Segment(READ | EXECUTE, 0, LOAD_ADDRESS, start + len(code))
    return elf_headers(LOAD_ADDRESS + start, [segment], machine) + code


def make(directory: str) -> int:
    """A descriptor of the program, as an unnamed file on our tmpfs: some hosts do not execute memfds."""
    with closing_fd(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o700)) as writable:
        os.write(writable, program())
        os.fchmod(writable, 0o111)
        # A file that is open for writing cannot be executed.
        return os.open(f"/proc/self/fd/{writable}", os.O_PATH | os.O_CLOEXEC)


def become(calls: CallList, file: Value, lifeline: Value, awake: Value) -> None:
    """End a list by exec of the program, which keeps two descriptors, and closes `awake` when it is undumpable."""
    calls.begin_step("put init to sleep")
    # Ignoring SIGCHLD makes the kernel reap the processes that the guest leaves behind.
    calls.call("rt_sigaction", signal.SIGCHLD, struct.pack("=4Q", _SIG_IGN, 0, 0, 0), None, 8)
    calls.call("dup3", lifeline, 0, 0)
    calls.call("dup3", awake, 1, 0)
    calls.call("close", 2, allowed_errno=9)
    fds.end_on_exec(calls)
    arguments = struct.pack("=QQ", calls.address(calls.buffer(b"init")), 0)
    calls.call("execveat", file, b"", arguments, bytes(8), _AT_EMPTY_PATH)
