"""Clients of the E2B API that hang up at every await: the next one gets its own answer, and the guest keeps nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.helpers import cancel_at_every_await

from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.e2b import contexts, filesystem
from warmcell.interfaces.serve.e2b.box import HOME, Box, Command
from warmcell.interfaces.serve.e2b.connect import MessageStream, RpcError, end_at_deadline
from warmcell.interfaces.serve.e2b.guest_files import GuestFiles
from warmcell.sessions.cell_results import CellResult


class ServiceProcess:
    """The real file service, outside of a cage."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.local = process, self

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        await self._process.stdin.drain()

    async def output(self) -> AsyncIterator[OutputEvent]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(1 << 16):
            yield OutputEvent("stdout", data)

    def kill_soon(self) -> None:
        if self.is_running:
            self._process.kill()

    def descriptors(self) -> set[str]:
        """What its descriptors lead to, with the watches of each inotify instance."""
        at = Path(f"/proc/{self._process.pid}")
        found = set()
        for number in os.listdir(at / "fd"):
            watches = (at / "fdinfo" / number).read_text().count("inotify wd")
            found.add(f"{os.readlink(at / 'fd' / number)} {watches}")
        return found


class Guest:
    """A box with files only."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.processes = directory, list[ServiceProcess]()
        self.files = GuestFiles(cast(Any, SimpleNamespace(sandbox=self)), lambda: os.defpath)
        self.watchers: dict[str, Any] = {}
        self.is_paused = False

    async def spawn(self, argv: list[str], cwd: str, env: dict[str, str]) -> ServiceProcess:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv[1:], stdin=pipe, stdout=pipe, limit=1 << 22, env=env
        )
        self.processes.append(ServiceProcess(process))
        return self.processes[-1]

    def path(self, name: str) -> str:
        return str(self.directory / name)

    async def read(self, name: str) -> bytes:
        return b"".join([chunk async for chunk in self.files.chunks(self.path(name))])

    async def descriptors(self) -> set[str]:
        """After all requests that were sent before."""
        while self.files._freeing:
            await asyncio.wait(self.files._freeing)
        await self.files.ask("stat", path=self.path("."))
        return self.processes[-1].descriptors()


@asynccontextmanager
async def guest_in(directory: Path) -> AsyncIterator[Guest]:
    guest = Guest(directory)
    (directory / "small").write_bytes(b"small")
    assert await guest.read("small") == b"small"
    try:
        yield guest
        assert len(guest.processes) == 1, "the service was started again"
    finally:
        guest.files.close()
        for process in guest.processes:
            await process._process.wait()


async def test_an_upload(tmp_path: Path) -> None:
    old, new = b"old", bytes(600_000)
    async with guest_in(tmp_path) as guest:
        before = await guest.descriptors()
        async for run in cancel_at_every_await(lambda: guest.files.write(guest.path("f"), new, {})):
            assert await guest.read("small") == b"small"
            assert await guest.descriptors() == before
            assert sorted(os.listdir(tmp_path)) in (["f", "small"], ["small"])
            assert await guest.read("f") == new if run.is_complete else True
            (tmp_path / "f").write_bytes(old)
    assert len(asyncio.all_tasks()) == 1


async def test_a_download(tmp_path: Path) -> None:
    large = os.urandom(600_000)
    (tmp_path / "large").write_bytes(large)
    async with guest_in(tmp_path) as guest:
        before = await guest.descriptors()
        async for run in cancel_at_every_await(lambda: guest.read("large")):
            assert await guest.read("small") == b"small"
            assert await guest.descriptors() == before
            assert (run.result == large) is run.is_complete


async def test_a_watcher(tmp_path: Path) -> None:
    async with guest_in(tmp_path) as guest:
        box = cast(Box, guest)
        await filesystem.remove_watcher(box, dict(await filesystem.create_watcher(box, {"path": guest.path(".")})))
        before = await guest.descriptors()  # with an inotify instance

        async def watch() -> list[Any]:
            made = await filesystem.create_watcher(box, {"path": guest.path(".")})
            (tmp_path / "new").write_bytes(b"")
            found = await filesystem.watcher_events(box, dict(made))
            await filesystem.remove_watcher(box, dict(made))
            return cast(list[Any], found["events"])

        async for run in cancel_at_every_await(watch):
            for left in list(guest.watchers.values()):  # a client that knows its id can still remove it
                left.end()
            assert await guest.descriptors() == before
            assert [event["name"] for event in run.result or ()] == ["new"] * run.is_complete
            (tmp_path / "new").unlink(missing_ok=True)


@pytest.mark.parametrize("is_recursive", [False, True])
async def test_a_stream_of_a_watched_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recursive: bool
) -> None:
    """The client disconnects after each message of the response, and at each await of the server."""
    monkeypatch.setattr(filesystem, "LOOK_SECONDS", 0.001)
    async with guest_in(tmp_path) as guest:
        box = cast(Box, guest)

        async def respond(stage: int) -> int:
            asked = {"path": guest.path("."), "recursive": is_recursive}
            sent: list[Any] = []

            async def receive() -> Any:
                while len(sent) < stage:
                    await asyncio.sleep(0)
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)
                (tmp_path / f"f{len(sent)}").touch()
                await asyncio.sleep(0)

            await MessageStream(filesystem.watch_dir(box, asked))({}, receive, send)
            return len(sent)

        await respond(2)
        before = await guest.descriptors()
        for stage in range(1, 6):
            assert await respond(stage) >= stage
            assert not guest.watchers and await guest.descriptors() == before
        async for _ in cancel_at_every_await(lambda: respond(3)):
            assert not guest.watchers and await guest.descriptors() == before


async def test_a_stream_whose_deadline_passes_while_it_begins(tmp_path: Path) -> None:
    """Its watcher stayed until the end of the sandbox, which may have 16 of them."""
    async with guest_in(tmp_path) as guest:
        box, asked = cast(Box, guest), {"path": guest.path(".")}
        await filesystem.remove_watcher(box, dict(await filesystem.create_watcher(box, asked)))
        before = await guest.descriptors()  # with an inotify instance
        sent: list[Any] = []
        with pytest.raises(RpcError, match="deadline"):
            async for batch in await end_at_deadline(filesystem.watch_dir(box, asked), 0.0):
                sent += batch
        assert sent == [{"start": {}}]
        assert not guest.watchers and await guest.descriptors() == before


async def test_a_client_that_leaves_while_the_sandbox_is_paused(tmp_path: Path) -> None:
    """The file service kept its watch until the end of the sandbox, which may watch 2000 directories in all."""
    async with guest_in(tmp_path) as guest:
        box, asked = cast(Box, guest), {"path": guest.path("."), "recursive": True}
        await filesystem.remove_watcher(box, dict(await filesystem.create_watcher(box, asked)))
        before = await guest.descriptors()  # with an inotify instance
        stream: Any = await filesystem.watch_dir(box, asked)
        assert await anext(stream) == [{"start": {}}]
        guest.is_paused = True
        await stream.aclose()
        assert not guest.watchers and await guest.descriptors() == before


def make_command(pid: int) -> tuple[Command, Future[None]]:
    finished: Future[None] = Future()
    process = SimpleNamespace(pid=pid, is_running=True, local=SimpleNamespace(exit_future=finished))
    return Command({}, None, cast(Any, process), False), finished


async def test_a_command_is_forgotten_when_it_ends_and_nobody_follows_it() -> None:
    box = Box.__new__(Box)
    box.commands = {}
    first, ended = make_command(7)
    box.add_command(first)
    second, _ = make_command(7)  # the guest's kernel uses a pid again
    await asyncio.to_thread(ended.set_result, None)
    await asyncio.sleep(0)
    assert box.commands == {}
    box.add_command(second)
    late, ended = make_command(7)
    box.add_command(late)
    box.commands[7] = second
    await asyncio.to_thread(ended.set_result, None)
    await asyncio.sleep(0)
    assert box.commands == {7: second}


class Cells:
    """A session that notes the cells that had an effect. One that is cancelled while it runs had one too."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self._turn = asyncio.Lock()

    async def run(self, code: str, **_: Any) -> CellResult:
        async with self._turn:
            await asyncio.sleep(0)
            self.codes.append(code)
            await asyncio.sleep(0)
            return CellResult()


async def test_variables_of_a_cell() -> None:
    """They are taken back, also if the client hangs up while they are set."""
    service = SimpleNamespace(settings=SimpleNamespace(max_timeout=60), run_slot=lambda tenant: nullcontext())
    box = SimpleNamespace(service=service, entry=SimpleNamespace(tenant="t"))
    context, cells, env = contexts.Context(cast(Box, box), "python", HOME), Cells(), {"A": "1"}
    context.session = cast(Any, cells)
    setting, restoring = (make("python", env) for make in (contexts._set_variables, contexts._restore_variables))
    async for run in cancel_at_every_await(lambda: context.run("code", env)):
        await cells.run("next")
        first, *_, last, following = cells.codes
        assert (first, last, following) == (setting, restoring, "next"), f"cancelled at suspension {run.at}"
        cells.codes.clear()
    assert len(asyncio.all_tasks()) == 1
