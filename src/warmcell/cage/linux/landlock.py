"""Landlock: a second, independent restriction of files, and of signals and abstract sockets to outside the cage."""

from __future__ import annotations

import os
import struct

from ..failure import CageError
from . import fds
from .call_list import CallList, Field, Value
from .kernel_support import landlock_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Container, Iterable, Tuple

_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_MAKE_DEVICES = (1 << 6) | (1 << 11)  # character and block nodes: granted nowhere

_NET_BIND_TCP, _NET_CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2
#: The first version that keeps abstract sockets and signals inside (Linux 6.12).
_FIRST_WITH_SCOPES = 6


def _handled_files(version: int) -> int:
    rights = (1 << 13) - 1
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


def has_scopes() -> bool:
    """Whether Landlock keeps abstract sockets inside."""
    return landlock_version() >= _FIRST_WITH_SCOPES


def restrict(
    calls: CallList, paths: Iterable[Tuple[str, bool]], files: Container[str], deny_network: bool = False
) -> None:
    """Restrict the process and its children to `paths`: (path, writable), of which `files` are files.

    The scopes keep signals and abstract sockets inside; `deny_network` denies TCP if the ABI supports it.
    """
    calls.begin_step("restrict with Landlock")
    version = landlock_version()
    if not version:
        raise CageError("restrict with Landlock", 38, "not available")
    handled = _handled_files(version)
    network = (_NET_BIND_TCP | _NET_CONNECT_TCP) if deny_network and version >= 4 else 0
    scoped = (_SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL) if version >= _FIRST_WITH_SCOPES else 0
    size = 24 if version >= _FIRST_WITH_SCOPES else 16 if version >= 4 else 8
    ruleset = calls.call("landlock_create_ruleset", struct.pack("=QQQ", handled, network, scoped), size, 0)
    for path, writable in paths:
        _allow(calls, ruleset, path, _rights(handled, writable, path in files))
    calls.begin_step("restrict with Landlock")
    calls.call("landlock_restrict_self", ruleset, 0)
    calls.call("close", ruleset)


def _rights(handled: int, writable: bool, is_file: bool) -> int:
    rights = (handled & ~_MAKE_DEVICES) if writable else (_READ & handled)
    return rights & _ON_FILES if is_file else rights


def _allow(calls: CallList, ruleset: Value, path: str, rights: int) -> None:
    calls.begin_step("restrict with Landlock", path)
    rule = calls.buffer(struct.pack("=Qi", rights, -1))
    place = fds.open_path(calls, path, os.O_PATH, Field(rule, 8))
    calls.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    calls.call("close", place)
