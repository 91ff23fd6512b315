"""The helpers that other tests lean on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import Cancelled, cancel_at_every_await, fork_child, reap, require


async def three_awaits(log: list[str]) -> str:
    for name in ("first", "second"):
        await asyncio.sleep(0)
        log.append(name)
    try:
        await asyncio.sleep(0)
    finally:
        log.append("cleaned up")
    return "done"


async def test_a_coroutine_is_cancelled_at_every_await() -> None:
    logs: list[list[str]] = []
    runs: list[Cancelled] = []

    def make():
        logs.append([])
        return three_awaits(logs[-1])

    async for run in cancel_at_every_await(make):
        runs.append(run)
    assert logs == [[], ["first"], *[["first", "second", "cleaned up"]] * 2]
    assert [type(run.error) for run in runs] == [asyncio.CancelledError] * 3 + [type(None)]
    assert [run.is_complete for run in runs] == [False] * 3 + [True]
    assert runs[-1].result == "done"


async def test_awaits_inside_other_coroutines_count() -> None:
    async def outer() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, 1)
        assert await future == 1
        await three_awaits([])

    assert [run.at async for run in cancel_at_every_await(outer)] == [1, 2, 3, 4, 5]


async def test_a_coroutine_that_swallows_the_cancellation_is_recognised() -> None:
    async def deaf() -> str:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "swallowed"
        return "done"

    runs = [run async for run in cancel_at_every_await(deaf)]
    assert [(run.is_complete, run.error, run.result) for run in runs] == [
        (False, None, "swallowed"),
        (True, None, "done"),
    ]


async def test_a_coroutine_that_fails_on_its_own_fails_the_test() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        [run async for run in cancel_at_every_await(broken)]


def test_a_forked_child_never_returns_into_pytest() -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    assert reap(fork_child(lambda: None)) == 0
    assert reap(fork_child(lambda: sys.exit(3))) == 3
    assert reap(fork_child(fail)) == 70
    assert reap(fork_child(lambda: os.kill(os.getpid(), signal.SIGQUIT))) == -signal.SIGQUIT


SIGNALS = """
import os, signal
import pytest
from tests.helpers import fork_child, reap

def test_dispositions():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number in (signal.SIGQUIT, signal.SIGHUP):
        assert reap(fork_child(lambda: os.kill(os.getpid(), number))) == -number

@pytest.mark.timeout(1, func_only=True)
def test_hangs():
    while True:
        signal.pause()
"""


@pytest.mark.timeout(180)
def test_a_background_job_has_ordinary_signals_and_a_hanging_test_ends(repository: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_signals.py"
    test.write_text(SIGNALS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(test)]
    require("pytest_timeout" in sys.modules, "pytest-timeout is not installed")
    ended = subprocess.run(
        ["sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh", *command],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1 and "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "Timeout" in ended.stdout


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout")
