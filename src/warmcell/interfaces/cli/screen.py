"""A full-screen view that is redrawn periodically and reads single keys. Restores the terminal."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_HELP = "q quits; c, m, t, p sort by processor, memory, time, program"


def run_screen(lines: Callable[[str], list[str]], key: str, keys: Container[str], every: float) -> None:
    """Draw `lines(key)` until `q`, Ctrl-C or end of input. Pressing one of `keys` changes the key."""
    with _cbreak_mode():
        while True:
            _draw(lines(key))
            if select.select([0], [], [], every)[0]:
                pressed = os.read(0, 1).decode("ascii", "replace")
                if pressed in ("", "q", "Q"):
                    return
                key = pressed if pressed in keys else key


@contextmanager
def _cbreak_mode() -> Iterator[None]:
    before = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(0)
        _write(_ENTER)
        yield
    except KeyboardInterrupt:
        return
    finally:
        with suppress(OSError, termios.error):  # the terminal is gone
            _write(_LEAVE)
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _draw(lines: list[str]) -> None:
    columns, rows = os.get_terminal_size(1)
    fitting = [*lines[: rows - 2], "", _HELP] if rows > 3 else lines[:rows]
    drawn = f"{_REST_OF_LINE}\r\n".join(line[:columns] for line in fitting)
    _write(_HOME + drawn + _REST_OF_LINE + _REST_OF_SCREEN)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
