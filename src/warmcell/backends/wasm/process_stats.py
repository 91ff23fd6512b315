"""What /proc says about a worker. Where there is no /proc the answer is None, and the caller goes without."""

from __future__ import annotations

import os

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_BYTES = 4096


def anonymous_bytes(pid: int) -> int | None:
    """Memory that is the worker's alone: compiled code and shared libraries are mapped files and do not count."""
    try:
        _, resident, shared, *_ = _read(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def cpu_seconds(pid: int) -> float | None:
    try:
        after_name = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
