"""E2B's volumes: their content, their owners, their mounts, and a restart."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.serve.conftest import Server, await_workers, make_token
from tests.serve.requests import Box

from warmcell.interfaces.serve.e2b import volume_space, volumes
from warmcell.interfaces.serve.responses import HttpError

Start = Callable[..., Any]


class Volume:
    """One volume, as a client holds it."""

    def __init__(self, client: httpx.Client, name: str, key: str = "any") -> None:
        self.client, self.key = client, {"x-api-key": key}
        made = client.post("/volumes", json={"name": name}, headers=self.key)
        assert made.status_code == 201, made.text
        self.id, self.token = made.json()["volumeID"], made.json()["token"]

    def call(self, method: str, kind: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.token}"}
        params = {"path": path, **more.pop("params", {})}
        return self.client.request(method, f"/volumecontent/{self.id}/{kind}", params=params, headers=headers, **more)

    def write(self, path: str, data: bytes) -> httpx.Response:
        return self.call("PUT", "file", path, content=data, params={"force": "true"})

    def remove(self) -> int:
        return self.client.delete(f"/volumes/{self.id}", headers=self.key).status_code


def test_content(server: Server) -> None:
    volume = Volume(server.client, "content")
    assert volume.call("POST", "dir", "/a/b", params={"force": "true", "mode": str(0o750)}).status_code == 201
    written = volume.call("PUT", "file", "/a/b/c.txt", content=b"text", params={"uid": "7", "gid": "8", "mode": "384"})
    assert written.status_code == 201
    about = written.json()
    assert (about["path"], about["size"], about["mode"], about["uid"], about["gid"]) == ("/a/b/c.txt", 4, 0o600, 7, 8)
    assert volume.call("PUT", "file", "/a/b/c.txt", content=b"x").status_code == 409
    assert volume.call("PUT", "file", "/missing/c", content=b"x").status_code == 404
    assert volume.call("GET", "file", "a/./b/c.txt").content == b"text"
    listed = volume.call("GET", "dir", "/", params={"depth": "3"}).json()
    assert [entry["path"] for entry in listed] == ["/a", "/a/b", "/a/b/c.txt"]
    changed = volume.call("PATCH", "path", "/a/b/c.txt", json={"mode": 0o640, "gid": 9}).json()
    assert (changed["mode"], changed["uid"], changed["gid"]) == (0o640, 7, 9)
    assert volume.call("DELETE", "path", "/a").status_code == 204
    assert volume.call("GET", "path", "/a").status_code == 404
    assert volume.call("DELETE", "path", "/").status_code == 404
    assert volume.remove() == 204


@pytest.mark.parametrize("path", ["../../etc/passwd", "/../../../etc/passwd", "/link", "/link/passwd", "/loop", "a\0b"])
def test_no_path_leads_out(server: Server, path: str) -> None:
    volume = Volume(server.client, "hostile")
    box = Box(server.client, volumeMounts=[{"name": "hostile", "path": "/mnt/v"}])
    try:
        assert box.run("ln -s /etc /mnt/v/link; ln -s loop /mnt/v/loop")[0] == 0
        assert volume.call("GET", "file", path).status_code in (400, 404)
        below = f"{path}/new"
        assert volume.call("PUT", "file", below, content=b"x").status_code in (400, 404, 409)
        listed = {entry["name"]: entry.get("target") for entry in volume.call("GET", "dir", "/").json()}
        assert listed == {"link": "/etc", "loop": "loop"}
    finally:
        box.kill()
        assert volume.remove() == 204


def test_a_volume_is_shared_by_sandboxes(server: Server) -> None:
    volume = Volume(server.client, "shared")
    volume.write("/in.txt", b"in")
    mounts = [{"name": "shared", "path": "/mnt/data"}]
    boxes = [Box(server.client, volumeMounts=mounts) for _ in range(2)]
    assert boxes[0].run("cat /mnt/data/in.txt; echo out > /mnt/data/out.txt")[1] == "in"
    assert boxes[1].run("cat /mnt/data/out.txt")[1] == "out\n"
    assert server.client.get(f"/sandboxes/{boxes[0].id}").json()["volumeMounts"] == mounts
    assert volume.remove() == 409
    for box in boxes:
        box.kill()
    assert volume.call("GET", "file", "/out.txt").content == b"out\n"
    assert volume.remove() == 204
    refused = server.client.post("/v2/sandboxes", json={"volumeMounts": mounts})
    assert (refused.status_code, "'shared' not found" in refused.text) == (404, True)


@pytest.mark.parametrize("workers", ["1", "2"])  # with one, both tenants are in the same process
def test_volumes_of_other_tenants(start_server: Start, tmp_path: Path, workers: str) -> None:
    tokens = tmp_path / "tokens.json"
    keys = [make_token(tokens, "one", "--disk-mb", "1", "--sandboxes", "1"), make_token(tokens, "two")]
    state = ("--state", str(tmp_path / "state"))
    with start_server("--tokens", str(tokens), "--workers", workers, *state) as server:
        await_workers(server, {"x-api-key": keys[0]})
        mine, theirs = (Volume(server.client, "same-name", key) for key in keys)
        assert mine.call("GET", "dir", "/", token=theirs.token).status_code == 404
        assert mine.call("GET", "dir", "/", token=keys[0]).status_code == 404
        assert server.client.get(f"/volumes/{mine.id}", headers=theirs.key).status_code == 404
        assert server.client.delete(f"/volumes/{mine.id}", headers=theirs.key).status_code == 404
        assert [volume["volumeID"] for volume in server.client.get("/volumes", headers=mine.key).json()] == [mine.id]
        assert server.client.post("/volumes", json={"name": "second"}, headers=mine.key).status_code == 429
        assert mine.write("/large", bytes(2 << 20)).status_code == 413
        assert mine.write("/small", b"kept").status_code == 201
        mount = [{"name": mine.id, "path": "/mnt/v"}]
        assert server.client.post("/v2/sandboxes", json={"volumeMounts": mount}, headers=theirs.key).status_code == 404
        box = Box(server.client, keys[0], volumeMounts=[{"name": "same-name", "path": "/mnt/v"}])
        assert server.client.post(f"/sandboxes/{box.id}/pause", json={}, headers=box.key).status_code == 204
        server.stop(signal.SIGKILL)
    with start_server("--tokens", str(tokens), "--workers", workers, *state) as server:
        await_workers(server, {"x-api-key": keys[0]})
        mine.client = box.client = server.client
        assert mine.call("GET", "file", "/small").content == b"kept"
        assert server.client.post(f"/sandboxes/{box.id}/connect", json={}, headers=box.key).status_code == 201
        assert box.run("cat /mnt/v/small")[1] == "kept"
        assert mine.remove() == 409
        box.kill()
        assert mine.remove() == 204


def test_guests_write_no_more_than_the_volume_has_left(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    key = make_token(tokens, "one", "--disk-mb", "4")
    with start_server("--tokens", str(tokens)) as server:
        volume = Volume(server.client, "shared", key)
        assert volume.write("/first", bytes(3 << 20)).status_code == 201
        mounts = [{"name": "shared", "path": "/mnt/shared"}]
        box = Box(server.client, key, volumeMounts=mounts)
        assert box.run("head -c 3000000 /dev/zero > /mnt/shared/second")[0] != 0
        assert int(volume.call("GET", "path", "/second").json()["size"]) <= 1 << 20
        assert volume.call("DELETE", "path", "/first").status_code == 204
        assert Box(server.client, key, volumeMounts=mounts).run("head -c 1000000 /dev/zero > /mnt/shared/third")[0] == 0


async def test_a_full_volume_is_not_mounted_in_new_sandboxes(tmp_path: Path) -> None:
    tenant: Any = SimpleNamespace(disk_mb=2)
    full, empty = (volumes.Volume(name, "tenant", name, "token", str(tmp_path / name)) for name in ("full", "empty"))
    for volume in (full, empty):
        Path(volume.path).mkdir()
    (tmp_path / "full/file").write_bytes(os.urandom(2 << 20))
    with pytest.raises(HttpError, match="the volume 'full' uses all 2 MB"):
        await volumes.remaining_space(tenant, [empty, full], is_new=True)
    assert await volumes.remaining_space(tenant, [empty, full], is_new=False) == 1
    assert await volumes.remaining_space(tenant, [empty], is_new=True) == 2
    assert await volumes.remaining_space(tenant, [], is_new=True) is None


@pytest.mark.attack("S3-18")
async def test_mounting_a_volume_in_many_sandboxes_does_not_walk_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox may mount one volume at 16 places; a walk over 20,000 files takes a quarter of a second each time."""
    walks, clock = list[str](), SimpleNamespace(monotonic=lambda: 1.0, thread_time=itertools.count().__next__)
    monkeypatch.setattr(volume_space, "time", clock)  # in which a walk takes a second of processor time
    monkeypatch.setattr(volume_space, "measure_directory", lambda path: walks.append(path) or 0)
    tenant: Any = SimpleNamespace(disk_mb=2)
    volume = volumes.Volume("v", "tenant", "v", "token", str(tmp_path))
    for _ in range(3):
        assert await volumes.remaining_space(tenant, [volume] * 16, is_new=True) == 2
    assert len(walks) == 1
    volume.mounted_space.note_removal()
    await volumes.remaining_space(tenant, [volume] * 16, is_new=True)
    assert len(walks) == 2


def peak_of(server: Server) -> int:
    """MiB of memory that the server has had at most."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def test_files_are_not_read_into_the_servers_memory(start_server: Start) -> None:
    """A file without content may be as large as the volume, and a token reads it many times at once."""
    with start_server() as server:
        volume = Volume(server.client, "large")
        box = Box(server.client, volumeMounts=[{"name": "large", "path": "/mnt/v"}])
        assert box.run("truncate -s 500M /mnt/v/large; printf end >> /mnt/v/large")[0] == 0
        before = peak_of(server)
        headers = {"authorization": f"Bearer {volume.token}"}
        address, params = f"/volumecontent/{volume.id}/file", {"path": "/large"}
        with ExitStack() as readers:
            for _ in range(4):
                stream = server.client.stream("GET", address, params=params, headers=headers)
                assert readers.enter_context(stream).status_code == 200
            time.sleep(1)
            assert peak_of(server) < before + 200
        with server.client.stream("GET", address, params=params, headers=headers) as whole:
            size, last = 0, b""
            for piece in whole.iter_bytes():
                size, last = size + len(piece), piece
        assert size == (500 << 20) + 3 and last.endswith(b"end")
        box.kill()


def test_what_a_guest_has_locked_is_not_our_failure(server: Server) -> None:
    volume = Volume(server.client, "locked")
    box = Box(server.client, volumeMounts=[{"name": "locked", "path": "/mnt/v"}])
    assert box.run("mkdir /mnt/v/d; ln -s x /mnt/v/d/l; chmod 500 /mnt/v/d")[0] == 0
    for method, kind, path in (("DELETE", "path", "/d/l"), ("PUT", "file", "/d/f"), ("POST", "dir", "/d/e")):
        refused = volume.call(method, kind, path)
        assert 400 <= refused.status_code < 500, refused.text
    box.run("chmod 700 /mnt/v/d")
    box.kill()
