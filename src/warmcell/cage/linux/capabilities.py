"""No capability survives: not effective, permitted, inheritable, ambient nor in the bounding set."""

from __future__ import annotations

import ctypes
import os
import struct

from .syscalls import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    call,
    prctl,
    prctl_each,
)

_VERSION_3 = 0x20080522


def drop_all() -> None:
    """Order matters: dropping from the bounding set needs a capability that `capset` then takes away.

    An ordinary user without namespaces has none to begin with and cannot shrink the bounding set; with
    no_new_privs it means nothing then.
    """
    try:
        prctl_each(PR_CAPBSET_DROP, range(_LAST + 1))
    except PermissionError:
        if os.geteuid() == 0:
            raise
    clear()


def clear() -> None:
    """All but the bounding set, which means nothing to who may not gain privileges."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0))
    nothing = ctypes.create_string_buffer(bytes(24))
    call("capset", header, nothing)


def forbid_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def last_capability() -> int:
    with open("/proc/sys/kernel/cap_last_cap") as file:
        return int(file.read())


_LAST = last_capability()
