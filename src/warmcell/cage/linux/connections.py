"""Connects unix sockets for guests that see host directories: to sockets of the guest's own making, to no others.

A read-only mount does not keep anybody from connecting to a socket in it, and what a host process offers on a socket is
not something that "may read this directory" was meant to include. The zygote looks where the path really
leads and makes the connection itself, so that nothing can change between the look and the act.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct

from .notify import unix_path
from .syscalls import call

_EPERM = 1
#: A full backlog must not hold up the one who looks after everybody.
_PATIENCE = struct.pack("@ll", 0, 2_000)
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 2, 16


def connect(thread: int, descriptor: int, address: bytes, own_device: int) -> int:
    """Carries out the guest's connect(), whatever the address: letting it go on would let the guest change its mind.

    Returns 0 or the errno that the guest gets; EPERM: a unix socket that is not its own.
    """
    path = unix_path(address)
    try:
        if path is None:
            return _connect_to(thread, descriptor, address)
        target = _open_inside(thread, path)
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


def _open_inside(thread: int, path: bytes) -> int:
    """Where the path leads for the guest: every link on the way is one of its own root's, and none leads out of it."""
    base = os.readlink(b"/proc/%d/cwd" % thread)
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    root = os.open(b"/proc/%d/root" % thread, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return call("openat2", root, os.path.join(base, path), ctypes.create_string_buffer(how), 24)
    finally:
        os.close(root)


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
