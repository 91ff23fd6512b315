"""Makes one call of our own code fail, or end its process: the next that a test names, in the process that it names.

Executed in the program that uses Warmcell and, as text, in its manager, before that serves: so it imports nothing but
the standard library and runs under any Python that the cage runs under. All processes that come of the manager share
one page of orders and counters, so a call can be named in any of them.
"""

from __future__ import annotations

import _socket
import ctypes
import mmap
import os
import select
import signal
import socket
import struct
import sys
from typing import Any, Callable, List, Sequence  # noqa: UP035  # by the Python of the cage

ROLES = ("supervisor", "manager", "zygote", "watcher", "keeper", "guest", "init")
#: In place of an errno: the process ends on the spot. And: every init that the manager has, does.
KILL, KILL_INIT = -1, -2
#: Every call that can fail for lack of something. Those that give something back are not among them.
OF_OS = "pipe2 open fork read pread write mkdir makedirs symlink chdir rmdir stat lstat fstat listdir scandir readlink"
OF_OS += " dup dup2 pidfd_open posix_spawn fstatvfs statvfs rename link"
OF_SOCKETS = "sendmsg recvmsg recvmsg_into send recv sendall dup"

#: The caller of these is recorded too.
_HELPERS = ("syscalls.py", "kernel_files.py", "wire.py", "descriptors.py", "call_list.py", "cgroups.py")
#: Whether calls are counted; role, turn and error of the one that fails; whether it did; where it is made.
_HEADER = struct.Struct("=qqqqq512s")
_HAS_FAILED = 32
_LOG_BYTES = 1 << 17
_LOGS = 4096


class Orders:
    """The shared page, by the path of its file."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(descriptor, _LOGS + _LOG_BYTES * len(ROLES))
        self._page = mmap.mmap(descriptor, 0)
        os.close(descriptor)

    def count(self) -> None:
        """Starts counting anew; nothing fails."""
        self._page[:] = bytes(len(self._page))
        _HEADER.pack_into(self._page, 0, 1, -1, 0, 0, 0, b"")

    def fail(self, role: str, site: str, turn: int, error: int) -> None:
        """The call that is made there for the `turn`th time, from 0."""
        self._page[:] = bytes(len(self._page))
        _HEADER.pack_into(self._page, 0, 1, ROLES.index(role), turn, error, 0, site.encode())

    def stop(self) -> None:
        self._page[0:8] = struct.pack("=q", 0)

    @property
    def has_failed(self) -> bool:
        return bool(_HEADER.unpack_from(self._page)[4])

    def calls(self, role: str) -> List[str]:  # noqa: UP006
        """What was called since `count`, in order: function and place."""
        start = self._log(role)
        text = self._page[start + 8 : start + _LOG_BYTES]
        return text[: text.index(b"\0")].decode().split("\n")[:-1]

    def _log(self, role: str) -> int:
        return _LOGS + _LOG_BYTES * ROLES.index(role)

    def due(self, role: str, site: str) -> int:
        """The error that this call is to fail with; 0: none. Counts and notes it."""
        on, failing, turn, error, _, place = _HEADER.unpack_from(self._page)
        if not on:
            return 0
        self._note(role, site)
        if failing != ROLES.index(role) or place.rstrip(b"\0") != site.encode():
            return 0
        struct.pack_into("=q", self._page, 16, turn - 1)
        if turn:
            return 0
        struct.pack_into("=q", self._page, _HAS_FAILED, 1)
        return int(error)

    def _note(self, role: str, site: str) -> None:
        start = self._log(role)
        (used,) = struct.unpack_from("=q", self._page, start)
        line = site.encode() + b"\n"
        if used + len(line) < _LOG_BYTES - 16:
            self._page[start + 8 + used : start + 8 + used + len(line)] = line
            struct.pack_into("=q", self._page, start, used + len(line))


class Injector:
    """Stands in for the functions that can fail. `ours`: parts of file names whose calls count."""

    def __init__(self, orders: Orders, role: str, ours: Sequence[str]) -> None:
        self.orders = orders
        self.role = role
        self._ours = tuple(ours)

    def install(self) -> None:
        for name in OF_OS.split():
            if hasattr(os, name):
                setattr(os, name, self._failing(getattr(os, name), name))
        for name in OF_SOCKETS.split():
            setattr(socket.socket, name, self._failing(getattr(socket.socket, name), name))
        socket.socketpair = self._failing(socket.socketpair, "socketpair")  # type: ignore[assignment]
        make_poll = select.poll
        select.poll = lambda: _Poll(make_poll(), self)  # type: ignore[assignment,misc]

    def install_in_light_sockets(self) -> None:
        """Those of the cage, which loads no `socket`: a type in C, so that another must take its place."""
        methods = {name: getattr(_socket.socket, name, None) for name in OF_SOCKETS.split()}
        failing = {name: self._failing(method, name) for name, method in methods.items() if method}
        light = type("socket", (_socket.socket,), failing)
        make_pair = self._failing(_socket.socketpair, "socketpair")

        def make_failing_pair(family: int, kind: int) -> Any:
            return tuple(light(family, kind, 0, end.detach()) for end in make_pair(family, kind))

        _socket.socket, _socket.socketpair = light, make_failing_pair  # type: ignore[misc,assignment]

    def _failing(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def stand_in(*arguments: Any, **options: Any) -> Any:
            self.step(name)
            return function(*arguments, **options)

        return stand_in

    def step(self, name: str, depth: int = 2) -> None:
        site = self._site(depth)
        error = self.orders.due(self.role, f"{name} {site}") if site else 0
        if error == KILL:
            self._end()
        elif error == KILL_INIT:
            self._end_inits()
        elif error:
            raise OSError(error, os.strerror(error))

    def _site(self, depth: int) -> str:
        """Where our own code made the call, be it by way of the standard library; "" where it was not our code."""
        frame, found = sys._getframe(depth), ""
        for _ in range(6):
            name = os.path.basename(frame.f_code.co_filename)
            if any(part in frame.f_code.co_filename for part in self._ours):
                found = f"{name}:{frame.f_lineno} {found}"
                if name not in _HELPERS:
                    return found.strip()
            if frame.f_back is None:
                break
            frame = frame.f_back
        return found.strip()

    def _end(self) -> None:
        if self.role == "manager":
            os._exit(137)  # the first process of a namespace cannot kill itself
        os.kill(os.getpid(), signal.SIGKILL)

    def _end_inits(self) -> None:
        """Every child that is neither the zygote nor the watcher is an init or a guest."""
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(word) for word in file.read().split()]
        for pid in children:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read() == b"init\0":
                    os.kill(pid, signal.SIGKILL)


class _Poll:
    """`select.poll` whose waiting can fail."""

    def __init__(self, poll: Any, injector: Injector) -> None:
        self._poll, self._injector = poll, injector
        self.register, self.unregister, self.modify = poll.register, poll.unregister, poll.modify

    def poll(self, *arguments: Any) -> Any:
        self._injector.step("poll")
        return self._poll.poll(*arguments)


class _Libc:
    """The C library of the cage's system calls, each of which can fail."""

    def __init__(self, libc: Any, injector: Injector) -> None:
        self._libc, self._injector = libc, injector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._libc, name)

    def syscall(self, number: Any, *arguments: Any) -> int:
        try:
            self._injector.step(f"syscall {number.value}")
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1
        return int(self._libc.syscall(number, *arguments))


def install_in_manager(path: str, is_plain: bool) -> None:
    """Called in a manager before it serves. `is_plain`: lists of calls are gone through by Python, call by call."""
    from cage.guest_entry import recipe  # type: ignore[import-not-found]
    from cage.linux import call_list, syscalls  # type: ignore[import-not-found]
    from cage.manager import sleeping_inits  # type: ignore[import-not-found]
    from cage.watching import watcher  # type: ignore[import-not-found]
    from cage.zygote import loop as zygote_loop  # type: ignore[import-not-found]

    injector = Injector(Orders(path), "manager", ["/cage/", "<warmcell "])

    def becomes(module: Any, name: str, role: str) -> None:
        function = getattr(module, name)

        def in_its_role(*arguments: Any) -> Any:
            injector.role = role
            return function(*arguments)

        setattr(module, name, in_its_role)

    becomes(zygote_loop, "serve", "zygote")
    becomes(watcher, "_run_watcher", "watcher")
    becomes(zygote_loop, "_run_guest", "guest")
    becomes(zygote_loop, "_run_keeper", "keeper")
    becomes(recipe, "lock_in", "guest")  # in a keeper's child too
    syscalls._libc = _Libc(syscalls._libc, injector)
    if is_plain:
        becomes(sleeping_inits, "_run_in_copy", "init")
        call_list._machine_code = lambda: call_list._MachineCode(None, None)
        call_list._libc = _Libc(call_list._libc, injector)
    injector.install()
    injector.install_in_light_sockets()
