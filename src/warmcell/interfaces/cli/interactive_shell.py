"""`warmcell shell [DIR]`: an interactive shell in a cage, on the user's terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import MemoryExceeded, SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import MEMORY, OUR_FAILURE, UsageError
from warmcell.interfaces.cli.messages import are_terminals, say_error
from warmcell.interfaces.cli.review_changes import Review, is_wanted, review
from warmcell.lifetime.threads import cancel_and_wait

if TYPE_CHECKING:
    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.sandbox.processes import AsyncProcess

#: Ends an unfinished sequence; resets modes that a guest may have left on: alternate screen, margins, cursor, colours,
#: and what makes the terminal type by itself: mouse, focus, paste, reports of size and colours, encodings of keys.
_RESET = b"\x18\x1b\\\x1b[?1049l\x1b[!p\x1b7\x1b[r\x1b8\x1b[<99u\x1b[>4m\x1b[2;4;20l" + b"".join(
    b"\x1b[?%dl" % mode for mode in (1, 5, 9, 1000, 1001, 1002, 1003, 1004, 1006, 2004, 2026, 2031, 2048, 5522)
)
_RESET += b"\x1b[?7h\x1b[?25h\x1b(B\x0f\x1b>\x1b[0m"
#: `_drop_replies` moves the cursor to so many columns, at random.
_QUERIES, _QUERY_COLUMNS, _MAX_REPLY_BYTES = 8, 60, 256
_POSITION = re.compile(rb"\x1b\[\d+;(\d+)R")
#: How long to wait for one reply of the terminal, and for all of them.
_REPLY_SECONDS, _ALL_REPLIES_SECONDS = 0.5, 10.0
#: How long the terminal may accept no output before we give up.
_WRITE_SECONDS = 5.0
#: The timeout of a script on stdin, in seconds.
_SCRIPT_TIMEOUT = 24 * 3600.0
#: Stop reading keys when the shell has so many bytes unread.
_MAX_UNSENT = 64 << 10
_SHELL_OF_IMAGE = "command -v bash >/dev/null && exec bash; exec sh"


class _Stopped(Exception):
    """A signal ended the shell; SIGHUP also if the terminal is gone. Changes kept apart stay for the next time."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def shell(arguments: argparse.Namespace) -> int:
    """Run the shell; return its exit status."""
    has_terminal = are_terminals(sys.stdin, sys.stdout)
    keeps_apart = is_wanted(arguments)
    has_streams = all(stream is not None for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not has_terminal and not (keeps_apart and has_streams):
        raise UsageError("shell needs a terminal", "for a script use 'warmcell run command FILE'")
    settings = _settings(arguments)
    reviewer = partial(review, arguments=arguments) if keeps_apart else None
    try:
        return asyncio.run(run_shell(settings, reviewer) if has_terminal else _run_script(settings, reviewer))
    except MemoryExceeded as error:
        say_error(error.message, error.hint)
        return MEMORY


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    from warmcell.workspace.mount_points import MountPoint

    settings: dict[str, Any] = {"track_changes": False, "env": options.environment(arguments.env)}
    settings |= {"image": arguments.image, "user": arguments.user}
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    settings |= {} if memory is None else {"memory_limit_mb": memory}
    settings["policy"] = options.policy(
        arguments.allow_read, arguments.allow_write, arguments.allow_domain, arguments.policy, arguments.gpu
    )
    if arguments.write and arguments.directory is None:
        raise UsageError("--write needs a directory", "warmcell shell --write DIR")
    if arguments.directory is not None and not os.path.isdir(arguments.directory):
        raise UsageError(f"{arguments.directory!r} is not a directory")
    if is_wanted(arguments):
        if arguments.write:
            raise UsageError("--write and --changes cannot be combined", "leave one of the two out")
        settings |= {"work_dir": os.path.realpath(arguments.directory or "."), "work_path": "host", "changes": "resume"}
    elif arguments.directory is not None and not arguments.write:
        settings["mounts"] = (MountPoint(os.path.realpath(arguments.directory), "/work", writable=False),)
    elif arguments.directory is not None:
        settings["work_dir"] = os.path.realpath(arguments.directory)
    return settings


async def run_shell(settings: dict[str, Any], reviewer: Review | None = None) -> int:
    """Run a shell in a sandbox with these settings, on this terminal; return its exit status.

    `reviewer` handles the changes that were kept apart.
    """
    from warmcell.languages.shell import find_shell
    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.sandbox.processes import PtySize

    size = os.get_terminal_size(sys.stdin.fileno())
    env = {"TERM": os.environ.get("TERM", "dumb"), "PS1": r"\u@\h:\w\$ "}
    try:
        async with AsyncSandbox(**settings) as sandbox, on_error(partial(_keep_changes, sandbox, reviewer)):
            pty = PtySize(size.columns or 80, size.lines or 24)
            command = [find_shell()] if settings["image"] is None else _SHELL_OF_IMAGE
            process = await sandbox.spawn(command, env=env, pty=pty)
            with _catch_signals() as stop, _open_screen() as screen, _raw_mode(sys.stdin.fileno(), screen):
                await _relay_terminal(process, stop, screen)
            return await _review_changes(sandbox, reviewer, _status(process))
    except _Stopped as stopped:
        return 128 + stopped.number


async def _run_script(settings: dict[str, Any], reviewer: Review | None) -> int:
    """Run the script on stdin, without a terminal."""
    from warmcell.sandbox.asynchronous import AsyncSandbox

    async with AsyncSandbox(**settings) as sandbox, on_error(partial(_keep_changes, sandbox, reviewer)):
        result = await sandbox.sh(
            sys.stdin.read(), timeout=_SCRIPT_TIMEOUT, on_stdout=sys.stdout.write, on_stderr=sys.stderr.write
        )
        sys.stdout.flush()
        return await _review_changes(sandbox, reviewer, result.exit_code & 0xFF)


async def _review_changes(sandbox: AsyncSandbox, reviewer: Review | None, status: int) -> int:
    """Return the guest's status, or 1 if that is 0 and changes could not be committed."""
    if reviewer is None:
        return status
    review_status = reviewer(*await sandbox.end_for_review())
    return status or review_status


async def _keep_changes(sandbox: AsyncSandbox, reviewer: Review | None) -> None:
    """Keep what was not reviewed, for the next time. Closing the sandbox would remove it."""
    if reviewer is not None and await sandbox.changes():
        await sandbox.keep_changes()


async def _relay_terminal(process: AsyncProcess, stop: asyncio.Future[int], screen: int) -> None:
    """Relay keys to the shell and its output to the screen until it ends. Raises `_Stopped` for a signal."""
    loop = asyncio.get_running_loop()
    keyboard = _Keyboard(sys.stdin.fileno(), process, stop)
    loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(keyboard.resize()))
    typing, showing = loop.create_task(keyboard.type()), loop.create_task(_show_output(process, screen, stop))
    awaited: list[asyncio.Future[Any]] = [showing, stop]
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        keyboard.close()
        await cancel_and_wait(typing, showing)
    if stop.done():
        raise _Stopped(stop.result())
    showing.result()


async def _show_output(process: AsyncProcess, screen: int, stop: asyncio.Future[int]) -> None:
    async for event in process.output():
        try:
            await _write_all(screen, event.data)
        except OSError:
            _stop(stop, signal.SIGHUP)
        await asyncio.sleep(0)  # signals and keys, also while output never pauses


async def _write_all(screen: int, data: bytes) -> None:
    """Write everything. Signals are handled also while the terminal accepts nothing."""
    loop, view = asyncio.get_running_loop(), memoryview(data)
    while view:
        try:
            view = view[os.write(screen, view) :]
        except BlockingIOError:
            room = asyncio.Event()
            loop.add_writer(screen, room.set)
            try:
                await room.wait()
            finally:
                loop.remove_writer(screen)


class _Keyboard:
    """Reads keys and types them into the shell. Stops reading while much is unsent: the terminal buffers the rest."""

    def __init__(self, descriptor: int, process: AsyncProcess, stop: asyncio.Future[int]) -> None:
        self._descriptor, self._process, self._stop = descriptor, process, stop
        self._loop = asyncio.get_running_loop()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()
        self._unsent = 0
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        data = _read(self._descriptor)
        if not data:
            self.close()
            _stop(self._stop, signal.SIGHUP)
            return
        self._unsent += len(data)
        self._typed.put_nowait(data)
        if self._unsent >= _MAX_UNSENT:
            self.close()

    async def type(self) -> None:
        while True:
            data = await self._typed.get()
            try:
                await self._process.write(data)
            except SandboxError:
                return  # the shell has ended; _status reports how
            was_full = self._unsent >= _MAX_UNSENT
            self._unsent -= len(data)
            if was_full and self._unsent < _MAX_UNSENT:
                self._loop.add_reader(self._descriptor, self._read)

    async def resize(self) -> None:
        with suppress(OSError, SandboxError):  # the terminal is gone, or the shell has ended
            size = os.get_terminal_size(self._descriptor)
            if self._process.is_running and size.columns and size.lines:
                await self._process.resize(size.columns, size.lines)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)


@contextmanager
def _catch_signals() -> Iterator[asyncio.Future[int]]:
    """Yield a future for the number of the first SIGTERM or SIGHUP."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, stop, number)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _stop(stop: asyncio.Future[int], number: int) -> None:
    if not stop.done():
        stop.set_result(number)


def _read(keyboard: int) -> bytes:
    """Read keys; empty if the terminal is gone."""
    try:
        return os.read(keyboard, 65536)
    except OSError:
        return b""


@contextmanager
def _open_screen() -> Iterator[int]:
    """Reopen the terminal for non-blocking writes: the mode of stdout is shared with the user's other programs."""
    screen = os.open(f"/proc/self/fd/{sys.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        yield screen
    finally:
        os.close(screen)


def _write(screen: int, data: bytes) -> None:
    """Write everything. Raises `TimeoutError` if the terminal accepts nothing."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(screen, view) :]
        except BlockingIOError:
            if not select.select([], [screen], [], _WRITE_SECONDS)[1]:
                raise TimeoutError("the terminal accepts no output") from None


@contextmanager
def _raw_mode(keyboard: int, screen: int) -> Iterator[None]:
    """Raw mode: every key, including Ctrl-C, goes to the shell. Restores the terminal."""
    import termios
    import tty

    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        with suppress(OSError):  # the terminal accepts nothing, or is gone
            _write(screen, _RESET)
            _drop_replies(keyboard, screen)
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)


def _drop_replies(keyboard: int, screen: int) -> None:
    """Discard the terminal's replies to a guest's queries, which would be typed into the user's shell.

    Terminals reply in order, so after the replies to our own queries no earlier one is pending. A guest cannot ask for
    the same replies beforehand: they are positions that we choose at random.
    """
    columns = [1 + secrets.randbelow(_QUERY_COLUMNS) for _ in range(_QUERIES)]
    queries = b"".join(b"\x1b[%dG\x1b[6n" % column for column in columns)
    _write(screen, b"\x1b7" + queries + b"\x1b8")
    received, deadline = b"", time.monotonic() + _ALL_REPLIES_SECONDS
    while [int(column) for column in _POSITION.findall(received)][-_QUERIES:] != columns:
        wait = min(_REPLY_SECONDS, deadline - time.monotonic())
        if wait <= 0 or not select.select([keyboard], [], [], wait)[0]:
            return
        data = _read(keyboard)
        if not data:
            return
        received = (received + data)[-_MAX_REPLY_BYTES:]


def _status(process: AsyncProcess) -> int:
    try:
        result = process.local.result()
    except SandboxError as error:
        say_error(error.message, error.hint)
        return MEMORY if isinstance(error, MemoryExceeded) else OUR_FAILURE
    return result.exit_code if result.signal is None else 128 + result.signal
