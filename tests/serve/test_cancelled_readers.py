"""Timeouts of readers: a `Sandbox` here and one on a server behave the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from tests.helpers import PATIENCE
from tests.serve.conftest import Either

from warmcell.workspace.file_watch import FileEvent


async def next_before(events: AsyncIterator[FileEvent], seconds: float) -> str:
    async with asyncio.timeout(seconds):
        return (await anext(events)).path


@pytest.mark.parametrize("is_entered", [True, False])
async def test_a_watch_survives_timeouts_and_loses_no_event(sandbox: Either, is_entered: bool) -> None:
    watch = sandbox.watch()
    if is_entered:
        await watch.__aenter__()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await next_before(watch, 0.2)
    seen: list[str] = []
    while not is_entered and not seen:  # on a loaded server it may not have begun yet
        await sandbox.mkdir(f"begun{time.monotonic_ns()}")
        with suppress(TimeoutError):
            seen.append(await next_before(watch, 0.2))
    for number in range(5):
        await sandbox.mkdir(f"d{number}")
    while "d4" not in seen:
        try:
            seen.append(await next_before(watch, 0.001))
        except TimeoutError:
            await asyncio.sleep(0.01)
    found = [name for name in dict.fromkeys(seen) if name.startswith("d")]
    assert found == [f"d{number}" for number in range(5)]
    await watch.aclose()


async def test_a_watch_whose_start_was_cancelled_can_be_started_again(sandbox: Either) -> None:
    watch = sandbox.watch()
    for seconds in (0, 0.0005, 0.002):
        try:
            async with asyncio.timeout(seconds):
                await watch.__aenter__()
        except TimeoutError:
            pass
    await watch.__aenter__()
    await sandbox.mkdir("seen")
    assert await next_before(watch, PATIENCE) == "seen"
    await watch.aclose()


async def test_closing_a_watch_ends_its_reader(sandbox: Either) -> None:
    async with sandbox.watch() as watch:
        reader = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0.1)
        await asyncio.gather(watch.aclose(), watch.aclose())
        async with asyncio.timeout(PATIENCE):
            assert await reader is None
        await watch.aclose()
        assert await anext(watch, None) is None


async def test_destroying_the_sandbox_ends_its_watches(sandbox: Either) -> None:
    async with sandbox.watch() as watch:
        reader = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0.1)
        await sandbox.destroy()
        async with asyncio.timeout(PATIENCE):
            assert await reader is None


async def test_output_survives_timeouts_and_loses_nothing(sandbox: Either) -> None:
    process = await sandbox.spawn("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done")
    output, data = process.output(), b""
    while not data.endswith(b"5\n"):
        try:
            async with asyncio.timeout(0.03):
                data += (await anext(output)).data
        except TimeoutError:
            pass
    assert data == b"1\n2\n3\n4\n5\n"
    async with asyncio.timeout(PATIENCE):
        assert await anext(output, None) is None
    await output.aclose()
    await output.aclose()


async def test_closing_output_ends_its_reader(sandbox: Either) -> None:
    process = await sandbox.spawn("sleep 300")
    output = process.output()
    reader = asyncio.ensure_future(anext(output, None))
    await asyncio.sleep(0.1)
    await asyncio.gather(output.aclose(), output.aclose())
    assert await reader is None
    await process.kill()
    await process.kill()


async def test_a_wait_that_timed_out_can_be_repeated(sandbox: Either) -> None:
    process = await sandbox.spawn("read x; exit 3")
    for seconds in (0, 0.001, 0.01, 0.1):
        with pytest.raises(TimeoutError):
            await process.wait(seconds)
    await process.write("go\n")
    assert (await process.wait(PATIENCE)).exit_code == 3


async def test_a_cell_that_timed_out_does_not_answer_the_next(sandbox: Either) -> None:
    async with sandbox.session() as session:
        await session.run("import time")
        for number in range(8):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05 * (number % 3)):
                    await session.run("time.sleep(60); 'late'", on_stdout=print if number % 2 else None)
            assert (await session.run(str(number))).value == str(number)
