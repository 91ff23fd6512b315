"""`refuse_calls.py NAME[:ARGUMENT][&FLAG][=ERRNO],... PROGRAM ...`: runs the program behind a filter that answers those calls.

With a flag only those whose first argument, or the numbered one, has it. As a kernel without them would (ENOSYS), or as the filter of a container does (EPERM). Started as a program.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from warmcell.cage.linux.syscalls import NUMBERS

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _FIRST_ARGUMENT = 0, 16
_ERRNO, _ALLOW, _ENOSYS = 0x00050000, 0x7FFF0000, 38
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def rule(text: str) -> list[bytes]:
    """Entered and left with the call's number loaded."""
    what, _, error = text.partition("=")
    which, _, flag = what.partition("&")
    name, _, argument = which.partition(":")
    refuse = instruction(_RETURN, _ERRNO | int(error or _ENOSYS))
    if not flag:
        return [instruction(_JUMP_IF_EQUAL, NUMBERS[name], if_false=1), refuse]
    return [
        instruction(_JUMP_IF_EQUAL, NUMBERS[name], if_false=4),
        instruction(_LOAD, _FIRST_ARGUMENT + 8 * int(argument or 0)),
        instruction(_JUMP_IF_SET, int(flag, 0), if_false=1),
        refuse,
        instruction(_LOAD, _NUMBER),
    ]


def instructions(rules: str) -> list[bytes]:
    refusals = [each for text in rules.split(",") for each in rule(text)]
    return [instruction(_LOAD, _NUMBER), *refusals, instruction(_RETURN, _ALLOW)]


def install(code: list[bytes]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(b"".join(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp")


if __name__ == "__main__":
    install(instructions(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
