"""Builds and loads through the Docker socket: how many there are at a time, their disk, and clients that hang up."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until_async

from warmcell.images.model import Image, ImageConfig
from warmcell.images.progress import ImageProgress
from warmcell.interfaces.docker import image_work
from warmcell.interfaces.docker.engine import DockerSettings
from warmcell.interfaces.docker.server import DockerServer, listen

MIB = 1 << 20
UPLOADS = ("/build", "/images/load", "/images/create?fromSrc=-")


class Daemon:
    """A server that does two jobs at a time, while two wait, and takes 2 MB of uploads."""

    def __init__(self, path: str, served: DockerServer) -> None:
        self._path, self.engine = path, served.engine
        self.clients: list[Client] = []

    async def send(self, target: str, body: bytes, length: int | None = None, method: str = "POST") -> Client:
        """With a length, the body is not complete."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        self.clients.append(Client(reader, writer))
        size = len(body) if length is None else length
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: d\r\nContent-Length: {size}\r\n\r\n".encode() + body)
        return self.clients[-1]

    def files(self) -> list[Path]:
        """Archives that are on disk."""
        place = Path(self.engine.directory.path)
        return [*place.glob("build-*"), *place.glob("archive-*"), *place.glob("save-*")]

    @property
    def waiting(self) -> int:
        return self.engine.image_work._slots.waiting

    @property
    def is_idle(self) -> bool:
        work = self.engine.image_work
        has_slots = work._slots.is_idle and work._save_slots.is_idle
        return has_slots and work._uploaded.room == 2 * MIB and not self.files()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def answer(self) -> tuple[int, str]:
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 60)
        body = await asyncio.wait_for(self._reader.read(4096), 60)
        return int(head.split()[1]), json.loads(body).get("message", "")

    def hang_up(self) -> None:
        self._writer.close()


@pytest.fixture
async def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Daemon]:
    for name, value in {"_AT_ONCE": 2, "_MAX_WAITING": 2, "_MAX_UPLOADED_MB": 2}.items():
        monkeypatch.setattr(image_work, name, value)
    path = str(tmp_path / "s")
    async with DockerServer(DockerSettings(path, store=str(tmp_path / "images")), listen(path)) as served:
        made = Daemon(path, served)
        try:
            yield made
        finally:
            for client in made.clients:
                client.hang_up()


@pytest.mark.parametrize("target", UPLOADS)
async def test_so_many_run_and_so_many_wait(daemon: Daemon, target: str) -> None:
    first, second = [await daemon.send(target, b"x", 1000) for _ in range(2)]
    await until_async(lambda: len(daemon.files()) == 2)
    third, fourth = [await daemon.send(target, b"x", 1000) for _ in range(2)]
    await until_async(lambda: daemon.waiting == 2)
    refused = await daemon.send(target, b"x", 1000)
    status, message = await refused.answer()
    assert status == 503 and "2 builds, loads and pulls are in progress" in message and "try again" in message
    assert len(daemon.files()) == 2

    third.hang_up()
    await until_async(lambda: daemon.waiting == 1)
    first.hang_up()
    await until_async(lambda: daemon.waiting == 0)
    await until_async(lambda: len(daemon.files()) == 2)
    for client in (second, fourth):
        client.hang_up()
    await until_async(lambda: daemon.is_idle)


@pytest.mark.parametrize("target", UPLOADS)
async def test_uploads_are_bounded_together(daemon: Daemon, target: str) -> None:
    first = await daemon.send(target, bytes(3 * MIB // 2), 2 * MIB)
    await until_async(lambda: daemon.engine.image_work._uploaded.room == MIB // 2)
    status, message = await (await daemon.send(target, bytes(MIB))).answer()
    assert status == 503 and "more than 2 MB of disk together" in message and "TMPDIR" in message
    first.hang_up()
    await until_async(lambda: daemon.is_idle)
    assert (await (await daemon.send(target, b"x" * MIB)).answer())[0] == 400  # accepted, and not an archive
    await until_async(lambda: daemon.is_idle)


async def test_unpacked_contexts_count(daemon: Daemon) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 3 * MIB
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    status, message = await (await daemon.send("/build", gzip.compress(buffer.getvalue()))).answer()
    assert status == 503 and "together" in message
    await until_async(lambda: daemon.is_idle)


@pytest.mark.parametrize("target", [*UPLOADS[1:], "/images/create?fromImage=localhost:1/image"])
async def test_a_client_that_hangs_up_ends_its_work(
    daemon: Daemon, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the image is added, which reports progress."""
    started = threading.Event()

    def work(*_: Any, on_progress: Any, **__: Any) -> None:
        for _ in range(6000):
            on_progress(ImageProgress("unpack", "sha256:0", 1, 2))
            started.set()
            time.sleep(0.01)

    monkeypatch.setattr(daemon.engine.store, "import_", work)
    monkeypatch.setattr(daemon.engine.store, "pull", work)
    client = await daemon.send(target, b"archive")
    await until_async(started.is_set)
    assert not daemon.engine.image_work._slots.is_idle
    client.hang_up()
    await until_async(lambda: daemon.is_idle, 20)


async def test_a_client_that_hangs_up_before_the_first_message_ends_its_pull(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noticed when the head of the response is sent."""
    monkeypatch.setattr("warmcell.interfaces.docker.connection._HANGUP_SECONDS", 60)
    started, is_gone = threading.Event(), threading.Event()

    def work(*_: Any, on_progress: Any, **__: Any) -> None:
        started.set()
        is_gone.wait(60)
        for _ in range(6000):
            on_progress(ImageProgress("pull", "sha256:0", 1, 2))
            time.sleep(0.01)

    monkeypatch.setattr(daemon.engine.store, "pull", work)
    client = await daemon.send("/images/create?fromImage=localhost:1/image", b"")
    await until_async(started.is_set)
    client.hang_up()
    await client._writer.wait_closed()
    is_gone.set()
    await until_async(lambda: daemon.is_idle, 20)


async def test_a_client_that_hangs_up_ends_its_pull_from_a_silent_registry(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()

    def work(*_: Any, check: Any, **__: Any) -> None:
        for _ in range(6000):
            started.set()
            check()
            time.sleep(0.01)

    monkeypatch.setattr(daemon.engine.store, "pull", work)
    client = await daemon.send("/images/create?fromImage=localhost:1/image", b"")
    await until_async(started.is_set)
    client.hang_up()
    await until_async(lambda: daemon.is_idle, 20)


async def test_pulls_have_slots_too(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()
    monkeypatch.setattr(daemon.engine.store, "pull", lambda *_, **__: ending.wait(60))
    for _ in range(3):
        await daemon.send("/images/create?fromImage=localhost:1/image", b"")
    await until_async(lambda: daemon.waiting == 1)
    ending.set()
    await until_async(lambda: daemon.is_idle)


async def test_a_server_that_ends_refuses_those_that_wait(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()
    monkeypatch.setattr(daemon.engine.store, "pull", lambda *_, **__: ending.wait(60))
    for _ in range(2):
        await daemon.send("/images/create?fromImage=localhost:1/image", b"")
    waiting = await daemon.send("/build", b"x", 1000)
    await until_async(lambda: daemon.waiting == 1)
    await daemon.engine.close()
    ending.set()
    assert await waiting.answer() == (503, "the server is shutting down")


@pytest.fixture
def may_save(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set it to have exports end. The daemon has one image, of 1.5 MB."""
    ending = threading.Event()
    image = Image("image:1", "sha256:" + "0" * 64, 3 * MIB // 2, None, ImageConfig())

    def export(name: str, path: str, _: str) -> None:
        ending.wait(60)
        Path(path).write_bytes(bytes(8 * MIB))  # more than the client's buffers

    monkeypatch.setattr(daemon.engine, "find_image", lambda _: asyncio.sleep(0, image))
    monkeypatch.setattr(daemon.engine.store, "export", export)
    return ending


async def test_saves_count_their_disk_until_they_were_sent(daemon: Daemon, may_save: threading.Event) -> None:
    work = daemon.engine.image_work
    saving = await daemon.send("/images/image/get", b"", method="GET")
    await until_async(lambda: work._uploaded.room == MIB // 2)
    status, message = await (await daemon.send("/images/image/get", b"", method="GET")).answer()
    assert status == 503 and "more than 2 MB of disk together" in message
    may_save.set()
    await until_async(lambda: work._save_slots.is_idle)  # nobody reads it, and others may save
    assert work._uploaded.room == MIB // 2
    saving.hang_up()
    await until_async(lambda: daemon.is_idle)


async def test_saves_have_slots_too(daemon: Daemon, may_save: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon.engine.image_work, "charge", lambda size: None)
    monkeypatch.setattr(daemon.engine.image_work, "refund", lambda size: None)
    saving = [await daemon.send("/images/image/get", b"", method="GET") for _ in range(3)]
    await until_async(lambda: daemon.engine.image_work._save_slots.waiting == 1)
    may_save.set()
    for client in saving:
        client.hang_up()
    await until_async(lambda: daemon.is_idle)
