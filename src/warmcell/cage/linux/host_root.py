"""Whether this process is the host's root, whose guests get ids that own nothing."""

from __future__ import annotations

import os

from . import kernel_files

#: The first id for root's guests: above every range that distributions hand out, so that it owns nothing.
UNOWNED_UID_BASE = 0x70000000
#: CAP_CHOWN, _DAC_OVERRIDE, _SETGID, _SETUID, _SYS_ADMIN and _SETFCAP, which giving guests such an id needs.
_ROOTS_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 6 | 1 << 7 | 1 << 21 | 1 << 31


def is_root_of_host() -> bool:
    """Whether it may map any user and mount: not uid 0 of a user namespace, nor root without its capabilities."""
    if os.geteuid() != 0:
        return False
    maps = [line.split() for line in kernel_files.read("/proc/self/uid_map").splitlines()]
    if not any(int(first) <= UNOWNED_UID_BASE and int(first) + int(count) >= 1 << 31 for first, _, count in maps):
        return False
    status = kernel_files.read("/proc/self/status")
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return effective & _ROOTS_CAPABILITIES == _ROOTS_CAPABILITIES
