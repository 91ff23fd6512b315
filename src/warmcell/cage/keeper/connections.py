"""Connects unix sockets for guests that see host directories: to sockets of the guest's own making, to no others.

A read-only mount does not keep anybody from connecting to a socket in it, and what a host process offers on a socket is
not something that "may read this directory" was meant to include. The keeper looks where the path really leads and
makes the connection itself, so that nothing can change between the look and the act.
"""

from __future__ import annotations

import os
import socket
import stat
import struct

from ..linux.notify import unix_path
from ..linux.syscalls import call

_EPERM = 1
#: A full backlog must not hold up the one who watches everything.
_PATIENCE = struct.pack("@ll", 0, 20_000)


def connect(thread: int, descriptor: int, address: bytes, own_device: int) -> int:
    """Carries out the guest's connect(), whatever the address: letting it go on would let the guest change its mind.

    Returns 0 or the errno that the guest gets; EPERM: a unix socket that is not its own.
    """
    path = unix_path(address)
    try:
        if path is None:
            return _connect_to(thread, descriptor, address)
        place = path if path.startswith(b"/") else b"/proc/%d/cwd/%s" % (thread, path)
        target = os.open(place, os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(target)
            if status.st_dev != own_device or not stat.S_ISSOCK(status.st_mode):
                return _EPERM
            name = struct.pack("=H", socket.AF_UNIX) + b"/proc/self/fd/%d\0" % target
            return _connect_to(thread, descriptor, name)
        finally:
            os.close(target)
    except OSError as error:
        return error.errno or _EPERM


def _connect_to(thread: int, descriptor: int, address: bytes) -> int:
    pidfd = call("pidfd_open", _process_of(thread), 0)
    try:
        copy = call("pidfd_getfd", pidfd, descriptor, 0)
    finally:
        os.close(pidfd)
    try:
        guest_socket = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # not a socket at all
        raise
    with guest_socket:
        patience = guest_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
        guest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        try:
            call("connect", copy, address, len(address))
        finally:
            guest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    return 0


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))
