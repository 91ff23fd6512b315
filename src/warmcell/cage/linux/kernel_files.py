"""Reads and writes files in /proc and /sys, without the costly buffers and encodings of `open`."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .call_list import CallList


def read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)


def read_short(path: str) -> str:
    """Read a file of less than 4 KiB, which the kernel returns at once."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


_ENOENT, _EBADF = 2, 9


def write_in_list(calls: CallList, path: str, text: str, may_be_missing: bool = False) -> None:
    """Add the write to a call list. With `may_be_missing`, a missing file is skipped."""
    encoded = text.encode()
    file = calls.call(
        "openat", -100, path.encode(), os.O_WRONLY | os.O_CLOEXEC, 0, allowed_errno=_ENOENT * may_be_missing
    )
    calls.call("write", file, encoded, len(encoded), allowed_errno=_EBADF * may_be_missing)
    calls.call("close", file, allowed_errno=_EBADF * may_be_missing)


#: The first id for root's guests: above the ranges that distributions assign, so that it owns nothing.
UNOWNED_UID_BASE = 0x70000000
#: For each manager of root. Pids have 22 bits, so all ids are below 1 << 31.
IDS_OF_A_MANAGER = 64
#: CAP_CHOWN, _DAC_OVERRIDE, _SETGID, _SETUID, _SYS_ADMIN and _SETFCAP, which giving guests such an id needs.
_ROOTS_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 6 | 1 << 7 | 1 << 21 | 1 << 31


def is_root_of_host() -> bool:
    """Whether we may map any user and mount: false for uid 0 of a user namespace, and for root without capabilities."""
    if os.geteuid() != 0:
        return False
    maps = [line.split() for line in read("/proc/self/uid_map").splitlines()]
    if not any(int(first) <= UNOWNED_UID_BASE and int(first) + int(count) >= 1 << 31 for first, _, count in maps):
        return False
    status = read("/proc/self/status")
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return effective & _ROOTS_CAPABILITIES == _ROOTS_CAPABILITIES
