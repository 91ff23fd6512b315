"""E2B's asynchronous SDK, unmodified, where it differs from the synchronous one: streams, callbacks, many at once.

The synchronous SDK's own tests and these: scripts/test-e2b.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEvent,
    FilesystemEventType,
    NotFoundException,
    SandboxException,
    SandboxQuery,
    TimeoutException,
)

PATIENCE = 30.0


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(timeout=300, metadata={"by": "async"}, envs={"A": "b"})
    yield made
    await made.kill()


async def test_commands(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.commands.run("echo $A; pwd")).stdout == "b\n/home/user\n"
    with pytest.raises(CommandExitException) as caught:
        await sandbox.commands.run("echo bad >&2; exit 3")
    assert (caught.value.exit_code, caught.value.stderr) == (3, "bad\n")
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("sleep 60", timeout=1)
    with pytest.raises(SandboxException):
        await sandbox.commands.run("pwd", cwd="/nowhere")


async def test_output_comes_to_callbacks_of_both_kinds(sandbox: AsyncSandbox) -> None:
    heard: list[str] = []

    async def on_stderr(text: str) -> None:
        await asyncio.sleep(0)
        heard.append(text)

    await sandbox.commands.run("echo out; sleep 0.2; echo err >&2", on_stdout=heard.append, on_stderr=on_stderr)
    assert "".join(heard) == "out\nerr\n"


async def test_a_command_goes_on_without_its_client(sandbox: AsyncSandbox) -> None:
    begun = await sandbox.commands.run(
        "for i in 1 2 3; do read line; echo got $line; done", background=True, stdin=True
    )
    await begun.disconnect()
    heard: list[str] = []
    again = await sandbox.commands.connect(begun.pid, on_stdout=heard.append)
    for word in ("a", "b", "c"):
        await sandbox.commands.send_stdin(begun.pid, f"{word}\n")
    assert (await asyncio.wait_for(again.wait(), PATIENCE)).exit_code == 0
    assert "".join(heard) == "got a\ngot b\ngot c\n"
    with pytest.raises(NotFoundException):
        await sandbox.commands.connect(999_999)


async def test_killing_a_command_and_listing(sandbox: AsyncSandbox) -> None:
    begun = await sandbox.commands.run("sleep 100", background=True)
    assert [process.pid for process in await sandbox.commands.list()] == [begun.pid]
    assert await begun.kill()
    with pytest.raises(CommandExitException):
        await begun.wait()
    assert not await sandbox.commands.kill(begun.pid)


async def test_a_sandbox_that_is_killed_under_a_command(sandbox: AsyncSandbox) -> None:
    begun = await sandbox.commands.run("sleep 100", background=True)
    await sandbox.kill()
    with pytest.raises(TimeoutException):
        await asyncio.wait_for(begun.wait(), PATIENCE)
    assert not await sandbox.is_running()


@pytest.mark.parametrize("is_there", [True, False])
async def test_watching_what_lies_below(sandbox: AsyncSandbox, is_there: bool) -> None:
    """Also below a directory that is made later."""
    await sandbox.files.make_dir("seen/inner" if is_there else "seen")
    found = asyncio.Event()

    def on_event(event: FilesystemEvent) -> None:
        if event.type == FilesystemEventType.WRITE and event.name == "inner/f":
            found.set()

    handle = await sandbox.files.watch_dir("seen", on_event=on_event, recursive=True)
    await sandbox.files.make_dir("seen/inner")
    await sandbox.files.write("seen/inner/f", "x")
    await asyncio.wait_for(found.wait(), PATIENCE)
    await handle.stop()


async def test_watching_what_is_no_directory(sandbox: AsyncSandbox) -> None:
    with pytest.raises(NotFoundException):
        await sandbox.files.watch_dir("none", on_event=print)
    await sandbox.files.write("plain", "")
    with pytest.raises(SandboxException):
        await sandbox.files.watch_dir("plain", on_event=print)


async def test_files(sandbox: AsyncSandbox) -> None:
    large = bytes(range(256)) * 8000
    await asyncio.gather(*(sandbox.files.write(f"dir/{number}", large) for number in range(4)))
    assert await sandbox.files.read("dir/3", format="bytes") == large
    streamed = [chunk async for chunk in await sandbox.files.read("dir/0", format="stream")]
    assert b"".join(streamed) == large
    assert [entry.name for entry in await sandbox.files.list("dir")] == ["0", "1", "2", "3"]
    await sandbox.files.rename("dir/0", "moved")
    assert await sandbox.files.exists("moved") and not await sandbox.files.exists("dir/0")
    await sandbox.files.remove("moved")
    await sandbox.files.remove("moved")
    with pytest.raises(NotFoundException):
        await sandbox.files.read("moved")


async def test_a_terminal(sandbox: AsyncSandbox) -> None:
    shown, is_there = bytearray(), asyncio.Event()

    async def on_data(data: bytes) -> None:
        shown.extend(data)
        if b"size 30 100" in shown:
            is_there.set()

    from e2b import PtySize

    terminal = await sandbox.pty.create(PtySize(24, 80), on_data=on_data)
    await sandbox.pty.resize(terminal.pid, PtySize(30, 100))
    await sandbox.pty.send_stdin(terminal.pid, b"echo size $(stty size)\n")
    await asyncio.wait_for(is_there.wait(), PATIENCE)
    assert await sandbox.pty.kill(terminal.pid)


async def test_pausing_connecting_listing(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("kept", "kept")
    await sandbox.pause()
    listed = await AsyncSandbox.list(query=SandboxQuery(metadata={"by": "async"})).next_items()
    assert sandbox.sandbox_id in [item.sandbox_id for item in listed if item.state.value == "paused"]
    again = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=120)
    assert await again.files.read("kept") == "kept" and await sandbox.is_running()


async def test_a_sandbox_pauses_itself_and_wakes(sandbox: AsyncSandbox) -> None:
    sleepy = await AsyncSandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await sleepy.files.write("kept", "kept")
    async with asyncio.timeout(PATIENCE):
        while (await sleepy.get_info()).state.value != "paused":
            await asyncio.sleep(0.3)
    assert await sleepy.files.read("kept") == "kept"
    await sleepy.kill()


async def test_snapshots_and_metrics(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("f", "one")
    snapshot = await sandbox.create_snapshot()
    await sandbox.files.write("f", "two")
    made = await AsyncSandbox.create(snapshot.snapshot_id, timeout=60)
    assert await made.files.read("f") == "one"
    await made.kill()
    [sample] = await sandbox.get_metrics()
    assert sample.mem_used > 0 and sample.disk_total > sample.disk_used


async def test_twenty_at_once() -> None:
    async def one(number: int) -> str:
        made = await AsyncSandbox.create(timeout=120)
        try:
            return (await made.commands.run(f"echo {number}")).stdout
        finally:
            await made.kill()

    assert await asyncio.gather(*map(one, range(20))) == [f"{number}\n" for number in range(20)]
