"""Spawning and killing, again and again; what is left of it is counted from outside."""

from __future__ import annotations

import os
import threading
import time

from warmcell import PtySize, Sandbox

_SHAPES = ("sleep 7654", "sleep 7654 & sleep 7654", "(setsid sleep 7654 &); cat", "echo x; exec sleep 7654", "exit 3")


def spawn_and_kill(rounds: int) -> dict[str, int]:
    """How many processes, descriptors and threads more there are afterwards than after the first few rounds."""
    with Sandbox() as sandbox:
        for number in range(10):
            _round(sandbox, number)
        # Of those that have ended a hundred are remembered, without their pipes.
        before = _await_state(sandbox)
        for number in range(rounds):
            _round(sandbox, number)
        deadline = time.monotonic() + 60
        while any((more := _growth(before, _state(sandbox))).values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return more


def _growth(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: max(0, after[name] - before[name]) for name in before}


def _await_state(sandbox: Sandbox) -> dict[str, int]:
    """The same three times in a row: what the last round is still closing would hide as much that is left behind."""
    seen = [_state(sandbox)]
    deadline = time.monotonic() + 60
    while seen[-3:] != [seen[-1]] * 3 and time.monotonic() < deadline:
        time.sleep(0.05)
        seen.append(_state(sandbox))
    return seen[-1]


def _round(sandbox: Sandbox, number: int) -> None:
    pty = PtySize(80, 24) if number % 4 == 3 else None
    process = sandbox.spawn(_SHAPES[number % len(_SHAPES)], pty=pty)
    if number % 3:
        process.signal(15)
    process.kill()
    process.wait(30)


def _state(sandbox: Sandbox) -> dict[str, int]:
    count = "ls -d /proc/[0-9]* | wc -l"
    return {
        "processes": int(sandbox.spawn(count).wait(30).stdout),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


if __name__ == "__main__":
    print(spawn_and_kill(1000))
