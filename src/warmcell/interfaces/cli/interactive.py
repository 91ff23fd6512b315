"""`warmcell shell [DIR]`: a person's own terminal, carried into a cage."""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import MemoryExceeded, SandboxError
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import MEMORY, OUR_FAILURE, UsageError
from warmcell.interfaces.cli.voice import say_error

if TYPE_CHECKING:
    from warmcell.sandbox.processes import AsyncProcess

#: What a program may have switched on and left on: other screen, mouse, pasting, cursor, colours, keypad.
_RESET = b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?25h\x1b[?1l\x1b>\x1b[0m"
#: A question that every terminal answers, and its answer.
_ARE_YOU_THERE, _HERE = b"\x1b[5n", b"\x1b[0n"
_ANSWER_SECONDS = 0.5


def shell(arguments: argparse.Namespace) -> int:
    """The exit status of the shell in the cage."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("shell needs a terminal", "for a script use 'warmcell run command FILE'")
    settings = _settings(arguments)
    try:
        return asyncio.run(_run(settings))
    except MemoryExceeded as error:
        say_error(error.message, error.hint)
        return MEMORY


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    from warmcell.workspace.mount_points import MountPoint

    settings: dict[str, Any] = {"track_changes": False, "env": options.environment(arguments.env)}
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    settings |= {} if memory is None else {"memory_limit_mb": memory}
    settings["policy"] = options.policy(
        arguments.allow_read, arguments.allow_write, arguments.allow_domain, arguments.policy
    )
    if arguments.write and arguments.directory is None:
        raise UsageError("--write is for a directory that you name", "warmcell shell --write DIR")
    if arguments.directory is not None and not os.path.isdir(arguments.directory):
        raise UsageError(f"{arguments.directory!r} is not a directory")
    if arguments.directory is not None and not arguments.write:
        settings["mounts"] = (MountPoint(os.path.realpath(arguments.directory), "/work", writable=False),)
    elif arguments.directory is not None:
        settings["work_dir"] = os.path.realpath(arguments.directory)
    return settings


async def _run(settings: dict[str, Any]) -> int:
    from warmcell.languages.shell import find_shell
    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.sandbox.processes import PtySize

    size = os.get_terminal_size(sys.stdin.fileno())
    env = {"TERM": os.environ.get("TERM", "dumb"), "PS1": r"\u@\h:\w\$ "}
    async with AsyncSandbox(**settings) as sandbox:
        pty = PtySize(size.columns or 80, size.lines or 24)
        process = await sandbox.spawn([find_shell()], env=env, pty=pty)
        with _raw(sys.stdin.fileno()):
            await _carry(process)
        return _status(process)


async def _carry(process: AsyncProcess) -> None:
    """What is typed goes in, in order; what is shown comes out, until the shell has ended."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    loop.add_reader(keyboard, lambda: typed.put_nowait(_read(keyboard)))
    loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(_resize(process, keyboard)))
    typing = loop.create_task(_type(process, typed))
    try:
        async for event in process.output():
            _write(screen, event.data)
    finally:
        loop.remove_reader(keyboard)
        loop.remove_signal_handler(signal.SIGWINCH)
        typing.cancel()


def _read(keyboard: int) -> bytes:
    try:
        return os.read(keyboard, 65536)
    except OSError:  # the terminal is gone
        return b""


async def _type(process: AsyncProcess, typed: asyncio.Queue[bytes]) -> None:
    while data := await typed.get():
        try:
            await process.write(data)
        except SandboxError:
            return  # it has ended, which is told elsewhere
    await process.kill()


async def _resize(process: AsyncProcess, keyboard: int) -> None:
    size = os.get_terminal_size(keyboard)
    if process.is_running and size.columns and size.lines:
        await process.resize(size.columns, size.lines)


def _write(screen: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(screen, view) :]
        except BlockingIOError:
            select.select([], [screen], [])


@contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    """Every key goes in as it is, Ctrl-C too; afterwards the terminal is as it was."""
    import termios
    import tty

    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        _write(sys.stdout.fileno(), _RESET)
        _drop_answers(keyboard)
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)


def _drop_answers(keyboard: int) -> None:
    """What a guest asked of the terminal is answered as if it were typed, and must not be typed into the user's shell.

    Terminals answer in order: when ours was answered, so was everything before.
    """
    _write(sys.stdout.fileno(), _ARE_YOU_THERE)
    heard, deadline = b"", time.monotonic() + _ANSWER_SECONDS
    while _HERE not in heard and (left := deadline - time.monotonic()) > 0:
        if not select.select([keyboard], [], [], left)[0]:
            return
        data = _read(keyboard)
        if not data:
            return
        heard = (heard + data)[-64:]


def _status(process: AsyncProcess) -> int:
    try:
        result = process.result()
    except MemoryExceeded:
        raise
    except SandboxError as error:
        say_error(error.message, error.hint)
        return OUR_FAILURE
    return result.exit_code if result.signal is None else 128 + result.signal
