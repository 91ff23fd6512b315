"""Installs beside other calls of the same sandbox: other installs, runs, processes and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.package_servers import Index, wheel

from warmcell import AsyncSandbox, SessionBusy

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

#: A run that waits for the file `go`.
WAIT_AND_USE = "import os, time\nopen('started', 'w')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"


async def until_asked(index: Index) -> None:
    async with asyncio.timeout(60):
        while not index.asked:
            await asyncio.sleep(0.02)


async def start_install(sandbox: AsyncSandbox, index: Index) -> asyncio.Task[None]:
    """An install that has begun and does not end before `index.gate` is set."""
    index.gate.clear()
    index.asked.clear()
    task = asyncio.create_task(sandbox.install("seeds"))
    await until_asked(index)
    return task


async def until_started(sandbox: AsyncSandbox) -> None:
    async with asyncio.timeout(60):
        while not await sandbox.exists("started"):
            await asyncio.sleep(0.02)


async def test_concurrent_installs_are_all_kept(index: Index) -> None:
    names = [f"part{number}" for number in range(3)]
    for name in names:
        index.files[f"{name}-1.0-py3-none-any.whl"] = wheel(name, "1.0", "WORD = __name__\n")
    async with AsyncSandbox() as sandbox:
        await asyncio.gather(*(sandbox.install(name) for name in names))
        result = await sandbox.run(f"import {', '.join(names)}")
        assert result.ok, result.stderr


async def test_a_run_keeps_the_packages_that_it_started_with(index: Index) -> None:
    """They were removed when another install ended, while the run was still using them."""
    async with AsyncSandbox() as sandbox:
        await sandbox.install("fruit")
        run = asyncio.create_task(sandbox.run(f"{WAIT_AND_USE}import fruit; print(fruit.WORD)"))
        await until_started(sandbox)
        await sandbox.install("seeds")
        await sandbox.write_file("go", "")
        result = await run
        assert result.stdout == "fruit with seeds\n", result.stderr


async def test_former_packages_are_removed_once_unused(index: Index) -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.install("seeds")
        first = Path(sandbox.packages_directory or "")
        run = asyncio.create_task(sandbox.run(WAIT_AND_USE))
        await until_started(sandbox)
        await sandbox.install("fruit")
        assert first.exists()
        await sandbox.write_file("go", "")
        await run
        second = Path(sandbox.packages_directory or "")
        await sandbox.install("fruit")
        assert not first.exists() and not second.exists()


async def test_a_process_that_starts_during_an_install_goes_on(index: Index) -> None:
    async with AsyncSandbox() as sandbox:
        install = await start_install(sandbox, index)
        process = await sandbox.spawn(["sleep", "600"])
        index.gate.set()
        with pytest.raises(SessionBusy):
            await install
        assert process.is_running and (await sandbox.exec("true")).ok
        await process.kill()
        await process.wait()
        await sandbox.install("seeds")
        assert (await (await sandbox.spawn(["python3", "-c", "import seeds"])).wait()).ok


async def test_a_session_that_starts_during_an_install_goes_on(index: Index) -> None:
    async with AsyncSandbox() as sandbox:
        install = await start_install(sandbox, index)
        async with await sandbox.session("python") as session:
            await session.run("x = 41")
            index.gate.set()
            with pytest.raises(SessionBusy):
                await install
            assert (await session.run("print(x + 1)")).stdout == "42\n"


async def test_programs_start_at_every_moment_of_an_install(index: Index) -> None:
    """Also at its end: each starts, and none is ended by the install."""
    async with AsyncSandbox() as sandbox:
        install = asyncio.create_task(ignore_busy(sandbox.install("seeds")))
        while not install.done():
            result = await (await sandbox.spawn(["sh", "-c", "sleep 0.05; echo ended"])).wait()
            assert result.stdout == "ended\n", result
            assert (await sandbox.run("print(1)")).stdout == "1\n"


async def ignore_busy(work: Coroutine[Any, Any, None]) -> None:
    with suppress(SessionBusy):
        await work


async def test_closing_during_an_install_leaves_nothing(index: Index) -> None:
    sandbox = AsyncSandbox()
    await sandbox.start()
    first = await start_install(sandbox, index)
    second = asyncio.create_task(sandbox.install("fruit"))
    await asyncio.sleep(0.05)
    await sandbox.aclose()
    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error).__name__ for error in ended] == ["SandboxDestroyed"] * 2
    assert sandbox.packages_directory is None
    index.gate.set()
