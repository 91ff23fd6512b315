"""Network namespaces of cells, reused if the kernel shows no trace of the last guest.

The kernel creates and removes them one at a time for the whole machine, which takes longer than the rest of a cell: on
16 processors, half of the time was spent waiting for it. They belong to the manager's user namespace, so a guest cannot
change addresses, routes, rules and settings. A guest can leave sockets, which close with its last process, leases of
IPv6 flow labels, and counters; `_read_state` reads those.
"""

from __future__ import annotations

import os
import struct
import time

from ..failure import step
from ..fast_imports import lru_cache, socket
from ..linux import kernel_files
from ..linux.descriptors import OwnedDescriptors
from ..linux.namespaces import HomeNamespace
from ..linux.syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_MOST_FREE = 32
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
#: Small, because only cgroup v2 counts the memory of TCP.
_TCP_BUFFERS = "4096 65536 262144"
#: When a guest joins or leaves a multicast group, the kernel sends reports for up to a second: these timers are
#: shortened, and a namespace rests until they have expired before its state is read.
_REPORT_TIMERS = (
    ("ipv4/igmp_qrv", "1"),
    ("ipv4/conf/lo/igmpv2_unsolicited_report_interval", "1"),
    ("ipv4/conf/lo/igmpv3_unsolicited_report_interval", "1"),
    ("ipv6/mld_qrv", "1"),
    ("ipv6/conf/lo/mldv1_unsolicited_report_interval", "1"),
    ("ipv6/conf/lo/mldv2_unsolicited_report_interval", "1"),
)
_REST_SECONDS = 0.05
#: Packets through the loopback; counters of each protocol; leased flow labels.
_COUNTERS = ("dev", "snmp", "snmp6", "ip6_flowlabel")
#: The numbers in these lines that are per namespace, such as sockets in use and connections in TIME_WAIT. The others
#: are for the whole machine.
_OF_ONE_NAMESPACE = {b"sockets:": ("used",), b"TCP:": ("inuse", "tw"), b"FRAG:": ("inuse",)}


class NetworkNamespaces:
    """Owned by a manager in a network namespace that it created itself, so that it can enter others and return.

    `is_for_one`: for a single cell, so that none is reused.
    """

    def __init__(self, is_for_one: bool = False) -> None:
        self._is_for_one = is_for_one
        self._home = HomeNamespace("net")
        #: Since when each is free, and its descriptor.
        self._free: List[Tuple[float, int]] = []
        #: By the init of the cell that uses it.
        self._used: Dict[int, int] = {}
        #: The state of a new one.
        self._fresh: Optional[Tuple[bytes, ...]] = None

    def enter(self) -> int:
        """Move this process into an unused one; returns its descriptor. `leave` must follow."""
        with OwnedDescriptors() as owned:
            try:
                descriptor = self._enter_clean(owned) or self._enter_new(owned)
            except BaseException:
                self.leave()
                raise
            owned.give(descriptor)
            return descriptor

    def _enter_clean(self, owned: OwnedDescriptors) -> int:
        """Enter a used one; 0 if none has the state of a new one."""
        while (descriptor := self._take_free()) > 0:
            owned.take(descriptor)
            self._home.enter(descriptor)
            if _read_state() == self._fresh:
                return descriptor
        return 0

    def _take_free(self) -> int:
        """The most recent one that has rested long enough; 0 if there is none."""
        rested = time.monotonic() - _REST_SECONDS
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index][0] < rested:
                return self._free.pop(index)[1]
        return 0

    def _enter_new(self, owned: OwnedDescriptors) -> int:
        with step("make network namespace"):
            self._home.enter_new()
        with step("bring up loopback", "lo"):
            _bring_up_loopback()
            if not self._is_for_one:
                _shorten_report_timers()
                self._fresh = self._fresh or _read_state()
            return owned.take(self._home.open_current())

    def leave(self) -> None:
        self._home.return_home()

    def assign(self, descriptor: int, init: int) -> None:
        """Mark it as used by the cell of this init, until `give_back`."""
        self._used[init] = descriptor

    def give_back(self, process: int) -> None:
        """Call it after the process was reaped. Does nothing unless it was an init."""
        descriptor = self._used.pop(process, None)
        if descriptor is None:
            return
        if len(self._free) < _MOST_FREE and not self._is_for_one:
            self._free.append((time.monotonic(), descriptor))
        else:
            os.close(descriptor)


def _bring_up_loopback() -> None:
    for name in ("tcp_rmem", "tcp_wmem"):
        kernel_files.write(f"/proc/sys/net/ipv4/{name}", _TCP_BUFFERS)
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        # A new loopback has no other flags to keep.
        call("ioctl", probe.fileno(), _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    finally:
        probe.close()


def _shorten_report_timers() -> None:
    for name, value in _REPORT_TIMERS:
        try:
            kernel_files.write(f"/proc/sys/net/{name}", value)
        except FileNotFoundError:  # a kernel without IPv6
            pass


def _read_state() -> Tuple[bytes, ...]:
    """The state of this process's network namespace that a guest can change."""
    return (*map(_read, _COUNTERS), *_numbers(_read("sockstat")))


@lru_cache(maxsize=64)
def _numbers(lines: bytes) -> Tuple[bytes, ...]:
    found: List[bytes] = []
    for line in lines.splitlines():
        name, *words = line.split()
        for word in _OF_ONE_NAMESPACE.get(name, ("inuse",)):
            found.append(words[words.index(word.encode()) + 1])
    return tuple(found)


def _read(name: str) -> bytes:
    """b"" if the kernel does not have the file, as without IPv6."""
    try:
        descriptor = os.open(f"/proc/self/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)  # the kernel writes such a file whole
    finally:
        os.close(descriptor)
