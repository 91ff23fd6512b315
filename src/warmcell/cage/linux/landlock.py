"""Landlock: a second, independent lock on files, and on signals and abstract sockets out of the cage."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import Iterable, Tuple

from .syscalls import call

_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_MAKE_DEVICES = (1 << 6) | (1 << 11)  # character and block nodes: granted nowhere

_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2


def abi() -> int:
    """The version that the running kernel offers; 0 when there is none."""
    try:
        return call("landlock_create_ruleset", None, 0, _CREATE_VERSION)
    except OSError:
        return 0


def _handled_files(version: int) -> int:
    rights = (1 << 13) - 1
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


def restrict(paths: Iterable[Tuple[str, bool]], deny_network: bool = False) -> None:
    """From here on this thread and its children reach only `paths`: (path, writable).

    The scopes stop signals and abstract sockets from leaving; with `deny_network`, TCP as well where the ABI can.
    """
    version = abi()
    if not version:
        raise OSError(38, "Landlock is not available")
    handled = _handled_files(version)
    network = (_NET_BIND_TCP | _NET_CONNECT_TCP) if deny_network and version >= 4 else 0
    scoped = (_SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL) if version >= 6 else 0
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", handled, network, scoped))
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call("landlock_create_ruleset", attributes, size, 0)
    try:
        for path, writable in paths:
            _allow(ruleset, path, writable, handled)
        call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, writable: bool, handled: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = (handled & ~_MAKE_DEVICES) if writable else (_READ & handled)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor))
        call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
