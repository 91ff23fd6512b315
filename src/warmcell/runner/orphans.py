"""How a guest ended whose zygote died: asked of the kernel, which remembers it for holders of a pidfd (Linux 6.15)."""

from __future__ import annotations

import fcntl
import struct
import time

_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO
_EXIT = 8
_PATIENCE = 3.0


def exit_status(pidfd: int) -> int | None:
    """The wait status, once whoever inherited the guest has reaped it; None where that cannot be learnt."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        info = bytearray(struct.pack("=Q", _EXIT).ljust(64, b"\0"))
        try:
            fcntl.ioctl(pidfd, _GET_INFO, info, True)
        except OSError:
            return None
        (mask,) = struct.unpack_from("=Q", info)
        if mask & _EXIT:
            return int(struct.unpack_from("=i", info, 60)[0])
        time.sleep(0.01)
    return None
