"""Drops all capabilities: effective, permitted, inheritable, ambient and bounding."""

from __future__ import annotations

import os
import struct

from . import kernel_files
from .call_list import CallList
from .syscalls import PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS

_VERSION_3 = 0x20080522
_EPERM = 1


def drop_all(calls: CallList) -> None:
    """Drop the bounding set first: that requires a capability, which `clear` drops.

    An ordinary user without namespaces has no capabilities and cannot shrink the bounding set, which has no effect with
    no_new_privs.
    """
    calls.begin_step("drop capabilities")
    for capability in range(_LAST + 1):
        calls.call("prctl", PR_CAPBSET_DROP, capability, allowed_errno=_EPERM if os.geteuid() else 0)
    clear(calls)


def clear(calls: CallList) -> None:
    """Drop all but the bounding set, which has no effect with no_new_privs."""
    calls.call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    calls.call("capset", struct.pack("=Ii", _VERSION_3, 0), bytes(24))
    calls.call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def last_capability() -> int:
    return int(kernel_files.read("/proc/sys/kernel/cap_last_cap"))


_LAST = last_capability()
