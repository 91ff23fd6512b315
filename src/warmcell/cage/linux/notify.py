"""Answers system calls that the filter passes on by user notification: refuses most, makes some, records denials."""

from __future__ import annotations

import fcntl
import os
import stat
import struct

from ..fast_imports import socket
from . import guest_files
from .descriptors import closing_fd
from .guest_files import TimeLimit, copy_of, open_inside
from .syscall_numbers import ADDING_ATTRIBUTES, LONGEST_ATTRIBUTE
from .syscalls import NUMBERS, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

    #: (thread, descriptor, address) -> 0 or the errno that the guest gets.
    Connect = Callable[[int, int, bytes], int]

_RECEIVE, _SEND, _IS_VALID, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_ADD_AND_REPLY = 2
_MFD_CLOEXEC = 1
_CONTINUE = 1
_EPERM, _ENOENT, _ENOMEM, _EFAULT, _ENOSPC = 1, 2, 12, 14, 28
_LONGEST_PATH = 4096
_MOST_REMEMBERED = 32

_NAMES: Dict[int, str] = {number: name for name, number in NUMBERS.items()}
_SPAWNING = {"clone", "fork", "vfork", "execve", "execveat"}
_LOOKING = {"connect": (1, 2), "sendto": (4, 5)}  # which arguments are the address and its length
#: What an attribute counts besides its value: its name and its entry. Some file systems, such as btrfs, store any
#: number with a file and do not count them as its size.
_ATTRIBUTE_ENTRY = 512


class Listener:
    """Answers notifications. Some calls continue after a check, some are made for the guest, all others get EPERM.

    `connect`, if given, makes the guest's connections. `scratch` is a directory on its tmpfs. `note_shared_memory` gets
    the length of a mapping and returns whether it is allowed. `is_own` returns whether the guest may lock an open file.
    `keepers` are pids in the guest's namespace that must not become tracers; empty: no tracing.
    """

    def __init__(
        self,
        descriptor: int,
        guest: int,
        connect: Optional[Connect] = None,
        scratch: int = -1,
        note_shared_memory: Callable[[int], bool] = lambda length: False,
        host_id: int = 0,
        is_own: Callable[[int], bool] = guest_files.is_on_writable_mount,
        keepers: Sequence[int] = (),
    ) -> None:
        self.descriptor = descriptor
        self._note_shared_memory = note_shared_memory
        self._host_id = host_id
        self._is_own = is_own
        self._scratch, self._keepers, self._connect, self._guest = scratch, keepers, connect, guest
        #: Set when the job is a program: our own code execs it before any guest code runs.
        self.may_exec_once = False
        #: How many bytes the guest may still store in attributes of files, if its filter passes such calls on.
        self.attribute_room = 1 << 62
        #: Called with each denial before the guest gets its error.
        self.on_denial: Optional[Callable[[str, str], None]] = None
        self._seen: Set[Tuple[str, str]] = set()

    @property
    def denials(self) -> List[List[str]]:
        return [[kind, what] for kind, what in sorted(self._seen)]

    def answer(self) -> None:
        """Answer one waiting call, whose caller may have died meanwhile."""
        request = bytearray(80)
        try:
            fcntl.ioctl(self.descriptor, _RECEIVE, request, True)
        except OSError:
            return
        identity, pid, _, number = struct.unpack_from("=QIIi", request)
        arguments = struct.unpack_from("=6Q", request, 32)
        try:
            self._answer_call(identity, _NAMES.get(number, str(number)), pid, arguments)
        except Exception:  # what one guest names must not end the manager, and with it the guests of all others
            self._reply(identity, 0, -_EPERM, 0)

    def _answer_call(self, identity: int, name: str, pid: int, arguments: Tuple[int, ...]) -> None:
        if name == "memfd_create" and self._give_memory_file(identity, arguments[1]):
            return
        if name == "inotify_add_watch":
            result = self._add_watch(identity, pid, arguments)
            self._reply(identity, max(result, 0), min(result, 0), 0)
            return
        errno = self._judge(identity, name, pid, arguments)
        error, flags = (0, _CONTINUE) if errno is None else (-errno, 0)
        self._reply(identity, 0, error, flags)

    def _reply(self, identity: int, value: int, error: int, flags: int) -> None:
        try:
            fcntl.ioctl(self.descriptor, _SEND, struct.pack("=QqiI", identity, value, error, flags))
        except OSError:
            return

    def _add_watch(self, identity: int, pid: int, arguments: Tuple[int, ...]) -> int:
        path, end, _ = _read_memory(pid, arguments[1], _LONGEST_PATH).partition(b"\0")
        if not path:
            return -_ENOENT if end else -_EFAULT
        if not self._is_waiting(identity):
            return -_EPERM
        descriptor, mask = arguments[0] & 0x7FFFFFFF, arguments[2] & 0xFFFFFFFF
        return guest_files.add_watch(pid, descriptor, path, mask, self._host_id)

    def _give_memory_file(self, identity: int, flags: int) -> bool:
        """Give the guest an unlinked file on the scratch tmpfs instead of a memfd, so that its size is counted."""
        cloexec = os.O_CLOEXEC if flags & _MFD_CLOEXEC else 0
        try:
            new = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o700, dir_fd=self._scratch)
            with closing_fd(new) as file:
                request = struct.pack("=QIIII", identity, _ADD_AND_REPLY, file, 0, cloexec)
                fcntl.ioctl(self.descriptor, _ADD_DESCRIPTOR, request)
                return True
        except OSError:
            return False

    def _is_waiting(self, identity: int) -> bool:
        try:
            fcntl.ioctl(self.descriptor, _IS_VALID, struct.pack("=Q", identity))
            return True
        except OSError:
            return False

    def _judge(self, identity: int, name: str, pid: int, arguments: Tuple[int, ...]) -> Optional[int]:
        """The errno for the guest (0: the call was made for it), or None if the call continues."""
        if name in _LOOKING:
            pointer, length = (arguments[index] for index in _LOOKING[name])
            address = _read_memory(pid, pointer, min(length, 128))
            # Checked after reading: if the call still waits, the memory was its caller's, not that of a later process.
            return self._examine(pid, arguments[0], address, name) if self._is_waiting(identity) else _EPERM
        if name == "mmap":
            return None if self._note_shared_memory(arguments[1]) else _ENOMEM
        if name == "flock":
            return guest_files.may_lock(pid, arguments[0] & 0x7FFFFFFF, arguments[1], self._is_own) or None
        if name in ADDING_ATTRIBUTES:
            return self._take_attribute_room(arguments[3])
        if name == "ptrace" and self._keepers:
            return None if arguments[0] == 0 and has_guest_as_parent(pid, self._keepers) else _EPERM
        if name == "execve" and pid == self._guest and self.may_exec_once:
            self.may_exec_once = False
            return None
        self._remember("process" if name in _SPAWNING else "syscall", name)
        return _EPERM

    def _take_attribute_room(self, size: int) -> Optional[int]:
        """Attributes that were replaced or removed stay counted: which ones the guest has is not known here."""
        needed = min(size, LONGEST_ATTRIBUTE) + _ATTRIBUTE_ENTRY
        if needed > self.attribute_room:
            return _ENOSPC
        self.attribute_room -= needed
        return None

    def _examine(self, pid: int, descriptor: int, address: bytes, name: str) -> Optional[int]:
        destination = describe_address(address)
        if destination:
            self._remember("network", destination)
        if self._connect is None or name != "connect":
            return None  # the network namespace refuses it
        errno = self._connect(pid, descriptor, address)
        path = unix_path(address)
        if errno == _EPERM and path is not None:
            self._remember("path", path.decode("utf-8", "replace"))
        return errno

    def _remember(self, kind: str, what: str) -> None:
        if len(self._seen) < _MOST_REMEMBERED:
            self._seen.add((kind, what))
        if self.on_denial is not None and (kind, what) in self._seen:
            self.on_denial(kind, what)


def _read_memory(pid: int, address: int, length: int) -> bytes:
    try:
        with closing_fd(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)) as memory:
            return os.pread(memory, length, address)
    except (OSError, OverflowError):
        return b""


def has_guest_as_parent(pid: int, keepers: Sequence[int]) -> bool:
    """Whether the parent of a process is in the same pid namespace, and none of the keepers there."""
    try:
        own = _read_status(pid)
        parents = _read_status(int(own["PPid"]))["NSpid"].split()
    except (OSError, KeyError, ValueError):
        return False
    return len(parents) == len(own["NSpid"].split()) and int(parents[-1]) not in keepers


def _read_status(pid: int) -> Dict[str, str]:
    with open(f"/proc/{pid}/status", errors="replace") as file:
        return {name: value for name, _, value in (line.partition(":") for line in file)}


def describe_address(raw: bytes) -> str:
    """ "host:port" of an internet address outside the guest's loopback; "" for everything else. Pure."""
    if len(raw) < 8:
        return ""
    family, port = struct.unpack_from("=H", raw)[0], struct.unpack_from("!H", raw, 2)[0]
    if family == socket.AF_INET:
        host = socket.inet_ntop(socket.AF_INET, raw[4:8])
        if host.startswith("127.") or host == "0.0.0.0":
            return "name resolution" if port == 53 else ""
        return f"{host}:{port}"
    if family == socket.AF_INET6 and len(raw) >= 24:
        host = socket.inet_ntop(socket.AF_INET6, raw[8:24])
        return "" if host in ("::1", "::") else f"[{host}]:{port}"
    return ""


def unix_path(address: bytes) -> Optional[bytes]:
    """The path in a socket address; None for other families, abstract names and unnamed sockets. Pure."""
    if len(address) < 3 or struct.unpack_from("=H", address)[0] != socket.AF_UNIX:
        return None
    return address[2:].split(b"\0", 1)[0] or None


# Guests that see host directories may connect only to unix sockets that they created: a read-only mount does not
# prevent connecting to a socket in it, which could give access to a service of the host. The manager resolves the path
# and makes the connection itself, so that nothing can change in between.

#: A full backlog must not block the manager. The guest has the socket too and may change that meanwhile, so a call that
#: takes longer is interrupted.
_PATIENCE = struct.pack("@ll", 0, 2_000)


def connect(thread: int, descriptor: int, address: bytes, own_device: int) -> int:
    """Make the guest's connect() call: if the call continued, the guest could change the address after the check.

    Returns 0 or the errno for the guest; EPERM for a unix socket that is not its own.
    """
    path = unix_path(address)
    try:
        if path is None:
            return _connect_to(thread, descriptor, address)
        with closing_fd(open_inside(thread, path)) as target:
            status = os.fstat(target)
            if status.st_dev != own_device or not stat.S_ISSOCK(status.st_mode):
                return _EPERM
            name = struct.pack("=H", socket.AF_UNIX) + b"/proc/self/fd/%d\0" % target
            return _connect_to(thread, descriptor, name)
    except OSError as error:
        return error.errno or _EPERM


def _connect_to(thread: int, descriptor: int, address: bytes) -> int:
    copy = copy_of(thread, descriptor)
    try:
        guest_socket = socket.socket(fileno=copy)
    except OSError:  # not a socket at all
        with TimeLimit():
            os.close(copy)
        raise
    try:
        patience = guest_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
        guest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        try:
            with TimeLimit():
                call("connect", copy, address, len(address))
        finally:
            guest_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    finally:
        with TimeLimit():  # as for `closing_copy`
            guest_socket.close()
    return 0
