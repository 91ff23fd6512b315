"""The thread of a live cage: whatever is asked of it is done, however many ask at once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from warmcell.sessions.loop import READ, Loop

WISHES = 3000


def test_every_wish_is_granted_though_few_wake_it() -> None:
    loop, done, are_all = Loop("test"), list[int](), threading.Event()

    def note(number: int) -> None:
        done.append(number)
        if number > 0 and number % 3 == 0:
            loop.call(lambda: note(-number))  # by the loop itself, in the middle of others
        if len(done) == WISHES + WISHES // 3:
            are_all.set()

    loop.start()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda number: loop.call(lambda: note(number)), range(1, WISHES + 1)))
    assert are_all.wait(30)  # without anybody who asks for more
    loop.call(loop.end)
    loop.join()
    assert not loop.call(are_all.clear)


def test_what_has_arrived_comes_before_timers() -> None:
    """Else a program whose end is in the socket would be ended as timed out, when this thread had no processor."""
    loop, seen, is_over = Loop("test"), list[str](), threading.Event()
    reader, writer = os.pipe()

    def read() -> None:
        seen.append(os.read(reader, 9).decode())

    def run_out() -> None:
        seen.append("timer")
        is_over.set()

    def begin() -> None:
        loop.watch(reader, READ, read)
        loop.call_later(0.0, run_out)
        os.write(writer, b"data")

    loop.start()
    assert loop.call(begin) and is_over.wait(30)
    loop.call(loop.end)
    loop.join()
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert seen == ["data", "timer"]
