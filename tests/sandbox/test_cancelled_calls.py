"""Callers that are cancelled while something is made for them: nothing of it is left, and the next call is right."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, Cancelled, cancel_at_every_await

from warmcell import AsyncSandbox, ProcessConfig
from warmcell.sandbox.local import pip_packages
from warmcell.sandbox.local.pip_packages import Installer

pytestmark = [pytest.mark.needs("user namespaces"), pytest.mark.timeout(280)]


@dataclass
class Maker:
    """A call that makes something for its caller, and how the caller ends it."""

    make: Callable[[AsyncSandbox], Awaitable[Any]]
    end: Callable[[Any], Awaitable[object]]


async def _spawn(sandbox: AsyncSandbox) -> Any:
    return await sandbox.spawn(["sleep", "1000"])


async def _spawn_code(sandbox: AsyncSandbox) -> Any:
    return await sandbox.spawn_code("import time; time.sleep(1000)", timeout=1000)


async def _session(sandbox: AsyncSandbox) -> Any:
    return await sandbox.session("command")


async def _branch(sandbox: AsyncSandbox) -> Any:
    return await sandbox.branch()


async def _ignore(made: object) -> None:
    pass


async def _destroy(made: Any) -> None:
    await made.destroy()


async def _close_socket(made: Any) -> None:
    made.close()


async def _begin_cage(sandbox: AsyncSandbox) -> Any:
    """The first program of a sandbox begins its cage."""
    async with await sandbox.fork() as fork:
        return (await (await fork.spawn(["echo", "first"])).wait()).stdout


async def _nothing(made: Any) -> None:
    assert made == "first\n"


MAKERS = {
    "spawn": Maker(_spawn, lambda made: made.kill()),
    "spawn_code": Maker(_spawn_code, lambda made: made.kill()),
    "session": Maker(_session, lambda made: made.close()),
    "expose": Maker(lambda sandbox: sandbox.expose(8000), lambda made: made.aclose()),
    "expose and wait": Maker(lambda sandbox: sandbox.expose(8001, wait=30), lambda made: made.aclose()),
    "connect": Maker(lambda sandbox: sandbox.connect(8001), _close_socket),
    "fork": Maker(lambda sandbox: sandbox.fork(), _destroy),
    "a cage": Maker(_begin_cage, _nothing),
}
is_late_or_early = pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
SERVER = "python3 -m http.server 8001 --bind 127.0.0.1"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import tempfile

    place = tmp_path / "t"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def make_sandbox(work_dir: Path | None = None, **options: Any) -> AsyncSandbox:
    return AsyncSandbox(work_dir, config=ProcessConfig(pool_size=0, pool_min=0), **options)


def count_descendants() -> int:
    parents = {}
    for entry in os.listdir("/proc"):
        try:
            state = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if entry.isdigit() and state[0] != "Z":
            parents[int(entry)] = int(state[1])
    found, left = {os.getpid()}, True
    while left:
        left = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= left
    return len(found)


def list_names(place: Path) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:  # removed meanwhile, or a file
        return []


def what_exists(place: Path) -> tuple[int, int, int]:
    """Descriptors, processes, and directories in the temporary directory and in that of the snapshots."""
    names = list_names(place)
    snapshots = [inside for name in names if "snapshots" in name for inside in list_names(place / name)]
    return len(os.listdir("/proc/self/fd")), count_descendants(), len(names) + len(snapshots)


async def settled_state(place: Path) -> tuple[int, int, int]:
    """What exists when processes that were killed are gone."""
    seen = [what_exists(place)]
    while len(set(seen[-20:])) > 1 or len(seen) < 20:
        await asyncio.sleep(0.01)
        seen.append(what_exists(place))
    return seen[-1]


async def check_nothing_is_left(before: tuple[int, int, int], place: Path, run: Cancelled) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if all(now <= then for now, then in zip(what_exists(place), before, strict=True)):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"cancelled at suspension {run.at}: left {what_exists(place)}, before {before}")


async def check_next_call(sandbox: AsyncSandbox) -> None:
    assert (await (await sandbox.spawn(["echo", "next"])).wait()).stdout == "next\n"


async def check_maker(sandbox: AsyncSandbox, maker: Maker, place: Path, is_late: bool) -> None:
    await maker.end(await maker.make(sandbox))
    await check_next_call(sandbox)
    before = await settled_state(place)

    async def call() -> Any:
        return await maker.make(sandbox)

    async for run in cancel_at_every_await(call, with_tasks=True, is_late=is_late):
        if run.error is None:
            await maker.end(run.result)
        run.result = None
        await check_nothing_is_left(before, place, run)
        await check_next_call(sandbox)
    assert run.is_complete


@is_late_or_early
@pytest.mark.parametrize("name", MAKERS)
async def test_what_was_made_for_a_cancelled_caller(temporary: Path, name: str, is_late: bool) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.spawn(SERVER)
        await (await sandbox.expose(8001, wait=30)).aclose()
        await check_maker(sandbox, MAKERS[name], temporary, is_late)


@is_late_or_early
async def test_a_snapshot(temporary: Path, is_late: bool) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.write_file("a", b"a")
        first = await sandbox.snapshot()
        await check_next_call(sandbox)
        before = what_exists(temporary)
        async for run in cancel_at_every_await(lambda: sandbox.snapshot(), with_tasks=True, is_late=is_late):
            if not run.is_complete:
                await check_nothing_is_left(before, temporary, run)
        await sandbox.restore(first)
        await sandbox.restore(run.result)
        assert await sandbox.read_file("a") == b"a"


@is_late_or_early
async def test_a_branch(temporary: Path, tmp_path: Path, is_late: bool) -> None:
    work = tmp_path / "project"
    work.mkdir()
    async with make_sandbox(work, changes="ask") as sandbox:
        await check_maker(sandbox, Maker(_branch, _destroy), temporary, is_late)


@is_late_or_early
async def test_a_fork_with_packages(temporary: Path, tmp_path: Path, is_late: bool) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "fruit.py").write_text("WORD = 'fruit'")
    async with make_sandbox() as sandbox:
        await sandbox.use_packages(str(packages))
        await check_maker(sandbox, MAKERS["fork"], temporary, is_late)


@is_late_or_early
async def test_copies_of_a_session(temporary: Path, is_late: bool) -> None:
    async with make_sandbox(forkable=True) as sandbox, sandbox.session() as session:
        await session.run("a = 7")

        async def end_fork(made: Any) -> None:
            assert (await made.run("a")).value == "7"
            await made.sandbox.destroy()

        await check_maker(sandbox, Maker(lambda _: session.fork(), end_fork), temporary, is_late)
        await check_maker(sandbox, Maker(lambda _: session.checkpoint(), lambda made: made.close()), temporary, is_late)


@is_late_or_early
async def test_sessions_of_a_checkpoint(temporary: Path, is_late: bool) -> None:
    """The sandbox of the second is prepared while the first is used; `close` ends the one prepared for a third."""
    async with make_sandbox(forkable=True) as sandbox, sandbox.session() as session:
        await session.run("a = 7")

        async def use_two(_: object) -> None:
            async with await session.checkpoint() as checkpoint:
                for _ in range(2):
                    copy = await checkpoint.session()
                    try:
                        assert (await copy.run("a")).value == "7"
                    finally:
                        await copy.sandbox.destroy()

        await check_maker(sandbox, Maker(use_two, _ignore), temporary, is_late)


@is_late_or_early
async def test_directories_of_an_installation(temporary: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    async def do_nothing(*_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Installer, "_index", lambda _: SimpleNamespace(urls=(), directories=()))
    monkeypatch.setattr(Installer, "_download", do_nothing)
    monkeypatch.setattr(Installer, "_unpack", do_nothing)
    monkeypatch.setattr(pip_packages, "cache_directory", lambda *_: str(temporary))
    installer = Installer(ProcessConfig(), "auto", 100)
    (await installer.install(["fruit"], None)).close()
    before = what_exists(temporary)
    async for run in cancel_at_every_await(lambda: installer.install(["fruit"], None), is_late=is_late):
        if run.result is not None:
            run.result.close()
        await check_nothing_is_left(before, temporary, run)
