"""Connects unix sockets for guests that see host directories, and only to sockets that the guest made.

A read-only mount does not prevent connecting to a socket in it, and a service on a host socket is more than "may read
this directory" grants. The manager resolves the path and makes the connection itself, so that nothing can change in
between.
"""

from __future__ import annotations

import os
import stat
import struct

from ..fast_imports import socket
from .guest_files import copy_of, open_inside
from .notify import unix_path
from .syscalls import call

_EPERM = 1
#: A full backlog must not block the manager.
_PATIENCE = struct.pack("@ll", 0, 2_000)


def connect(thread: int, descriptor: int, address: bytes, own_device: int) -> int:
    """Makes the guest's connect() call for it: if the call went on, the guest could change the address in between.

    Returns 0 or the errno for the guest; EPERM for a unix socket that is not its own.
    """
    path = unix_path(address)
    try:
        if path is None:
            return _connect_to(thread, descriptor, address)
        target = open_inside(thread, path)
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
    copy = copy_of(thread, descriptor)
    try:
        guest_socket = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # not a socket at all
        raise
    try:
        patience = guest_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
        guest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        try:
            call("connect", copy, address, len(address))
        finally:
            guest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    finally:
        guest_socket.close()
    return 0
