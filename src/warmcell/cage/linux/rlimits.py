"""Resource limits that the kernel enforces per process."""

from __future__ import annotations

import resource
import struct

from .call_list import CallList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Tuple

NAMES = {
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
    "msgqueue": getattr(resource, "RLIMIT_MSGQUEUE", 12),
    "sigpending": getattr(resource, "RLIMIT_SIGPENDING", 11),
    "nice": getattr(resource, "RLIMIT_NICE", 13),
    "rtprio": getattr(resource, "RLIMIT_RTPRIO", 14),
}


#: Counted per user over all namespaces: each guest gets a share.
_OF_THE_USER = ("sigpending", "msgqueue")
_SHARES = 16


def apply(calls: CallList, limits: Iterable[Tuple[str, int]]) -> None:
    """Sets each as soft and hard limit, but not above the hard limit of the zygote."""
    calls.begin_step("set limits")
    for name, value in limits:
        number = NAMES[name]
        _, hard = resource.getrlimit(number)
        share = hard // _SHARES if name in _OF_THE_USER else hard
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, share)
        calls.call("prlimit64", 0, number, struct.pack("=QQ", ceiling, ceiling), None)
