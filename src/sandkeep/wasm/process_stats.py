"""What /proc says about a worker. Where there is no /proc the answer is None, and the caller goes without."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pid: int) -> int | None:
    """Memory that is the worker's alone: compiled code and shared libraries are mapped files and do not count."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def cpu_seconds(pid: int) -> float | None:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None
