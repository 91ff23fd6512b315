"""What requests to volumes cost, and that nobody gets past the quota: requests, sandboxes, a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.e2b import volume_space
from warmcell.interfaces.serve.e2b.volumes import Volume, release_volumes, use_volumes, volumes_of
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.workspace import walk
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.walk import TreeLimits

MIB = 1 << 20


class Client:
    """Requests to one volume, whose quota is 4 MB, and a count of the entries that walks have looked at."""

    def __init__(self, http: httpx.AsyncClient, volume: Volume) -> None:
        self._http, self.volume = http, volume
        self.path = Path(volume.path)
        self.looked_at = 0

    async def call(self, method: str, kind: str, path: str, content: bytes | None = None) -> int:
        headers = {"authorization": f"Bearer {self.volume.token}"}
        address, params = f"/volumecontent/{self.volume.id}/{kind}", {"path": path, "force": "true"}
        return (await self._http.request(method, address, params=params, headers=headers, content=content)).status_code

    async def write(self, path: str, size: int = 5) -> int:
        return await self.call("PUT", "file", path, bytes(size))

    def write_as_guest(self, name: str, size: int) -> None:
        (self.path / name).write_bytes(bytes(size))


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    service = Service(Settings())
    service._local_tenant = replace(service._local_tenant, disk_mb=4)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(service)), base_url="http://127.0.0.1") as http:
        made = (await http.post("/volumes", json={"name": "one"})).json()
        volume = volumes_of(service).find_any(made["volumeID"])
        assert volume is not None
        client, look = Client(http, volume), walk._look

        def count(fd: int, parts: tuple[str, ...]) -> walk.TreeEntry | None:
            client.looked_at += 1
            return look(fd, parts)

        monkeypatch.setattr(walk, "_look", count)
        yield client
    await service.aclose()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks may follow each other at once."""
    monkeypatch.setattr(volume_space, "_PAUSE", 0)


async def test_a_write_does_not_look_at_the_other_files(client: Client) -> None:
    for number in range(200):
        client.write_as_guest(str(number), 10)
    for number in range(50):
        assert await client.write(f"/new{number}") == 201
        assert await client.call("POST", "dir", f"/directory{number}/below") == 201
        assert await client.call("DELETE", "path", f"/new{number}") == 204
    assert client.looked_at == 200  # by the first request, which knows nothing of what the last server has left


async def test_requests_are_counted(client: Client) -> None:
    for number in range(3):
        assert await client.write(f"/{number}", MIB) == 201
    assert await client.write("/large", 2 * MIB) == 413
    assert await client.write("/0", MIB + MIB // 2) == 201  # in place of the other
    assert await client.write("/large", MIB) == 413
    assert await client.call("DELETE", "path", "/1") == 204
    assert await client.write("/large", MIB) == 201
    assert await client.call("POST", "dir", "/" + "d/" * 200) == 413
    assert sum(file.stat().st_blocks * 512 for file in client.path.rglob("*")) <= 4 * MIB


async def test_what_sandboxes_write_is_found(client: Client, no_pause: None) -> None:
    """While the volume is mounted, and after."""
    assert await client.write("/first") == 201
    mounted = use_volumes([client.volume])
    assert await client.write("/second") == 201
    client.write_as_guest("guest", 3 * MIB)
    assert await client.write("/third", 2 * MIB) == 413
    client.write_as_guest("guest", 0)
    assert await client.write("/third", 2 * MIB) == 201
    client.write_as_guest("guest", MIB)
    release_volumes(mounted)
    assert await client.write("/fourth", 2 * MIB) == 413
    before = client.looked_at
    assert await client.write("/fifth") == 201
    assert client.looked_at == before


async def test_a_mounted_volume_is_not_walked_without_a_pause(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is one that has no room."""
    monkeypatch.setattr(volume_space, "_PAUSE", 1_000_000)
    for number in range(100):
        client.write_as_guest(str(number), 10)
    use_volumes([client.volume])
    for number in range(20):
        assert await client.write(f"/new{number}") == 201
        assert await client.write("/large", 5 * MIB) == 413
    assert client.looked_at == 100


def test_the_pause_after_a_walk_does_not_grow_while_the_host_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lasted twenty times as long, in which nothing looked at what sandboxes wrote into the volume."""
    now, walks = [0.0], list[str]()

    def measure(path: str, limits: TreeLimits) -> int:
        now[0] += 100.0
        walks.append(path)
        return 0

    monkeypatch.setattr(volume_space, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: 0.0))
    monkeypatch.setattr(volume_space, "measure_directory", measure)
    space = volume_space.VolumeSpace(str(tmp_path))
    for _ in range(2):
        space.prepare(4, 1, 1, is_mounted=True)
    assert len(walks) == 2


async def test_a_sandbox_cannot_have_its_own_files_refunded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by removing them nor by replacing them, while requests do not look at the files again."""
    monkeypatch.setattr(volume_space, "_PAUSE", 1_000_000)
    assert await client.write("/first", 2 * MIB) == 201
    use_volumes([client.volume])
    for number in range(4):
        (client.path / f"link{number}").hardlink_to(client.path / "first")
    assert await client.call("DELETE", "path", "/link0") == 204
    assert await client.write("/link1", 1) == 201
    assert await client.call("DELETE", "path", "/link2") == 204
    monkeypatch.setattr(volume_space.VolumeSpace, "_is_doubtful", lambda *_: False)
    assert await client.write("/second", MIB) == 201
    assert await client.write("/third", MIB) == 413


async def test_replacing_files_of_a_mounted_volume(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account has no refunds, so it is corrected in time."""
    assert await client.write("/first") == 201
    client.volume.space._pause_end = float("inf")
    use_volumes([client.volume])
    for _ in range(20):
        assert await client.write("/file", MIB) == 201
    assert 5 <= client.looked_at <= 40


async def test_entries_have_a_limit(client: Client, no_pause: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_space, "_LIMITS", TreeLimits(entries=50))
    monkeypatch.setattr(volume_space, "_MAX_NEW_ENTRIES", 10)
    statuses = [await client.write(f"/{number}", 0) for number in range(80)]
    assert 50 <= statuses.count(201) <= 62 and statuses[-1] == 413
    monkeypatch.setattr(volume_space, "_PAUSE", 1_000_000)
    assert await client.write("/more") == 413
    before = client.looked_at
    assert await client.write("/more") == 413
    assert client.looked_at == before
    for number in range(20):
        assert await client.call("DELETE", "path", f"/{number}") == 204
    assert await client.write("/more") == 201


async def test_an_old_account_is_corrected(client: Client, no_pause: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await client.write("/first") == 201
    client.write_as_guest("unnoticed", 3 * MIB)
    assert await client.write("/second", MIB // 2) == 201
    monkeypatch.setattr(volume_space, "_MAX_AGE_SECONDS", 0)
    assert await client.write("/third", MIB) == 413


def test_a_directory_is_measured_by_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(MIB)
    (tmp_path / "full").write_bytes(bytes(MIB))
    assert MIB <= volume_space.measure_directory(str(tmp_path)) < MIB + MIB // 4
    with pytest.raises(LimitExceeded):
        volume_space.measure_directory(str(tmp_path), TreeLimits(entries=1))
