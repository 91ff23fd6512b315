"""Tenants who want more than they may, or somebody else's: at every door, many at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from tests.serve.conftest import ROOT, Server, make_token
from tests.serve.requests import Box

from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.e2b import envd
from warmcell.interfaces.serve.requests import OWNER, BodyMemory, read_body
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings

Start = Callable[..., Any]
SNAPSHOTS, CONNECTIONS = 3, 6


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    few = ("--sandboxes", str(SNAPSHOTS), "--connections", "200")
    made = {"few": make_token(file, "few", *few), "short": make_token(file, "short", "--connections", str(CONNECTIONS))}
    return made | {"file": str(file)}


@pytest.fixture(scope="module")
def guarded(start_server: Start, tokens: dict[str, str]) -> Iterator[Server]:
    with start_server("--tokens", tokens["file"]) as server:
        yield server


@pytest.fixture(scope="module")
def few(guarded: Server, tokens: dict[str, str]) -> Iterator[Box]:
    made = Box(guarded.client, tokens["few"])
    yield made
    made.kill()


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize("query", ["limit=%C2%B2", "nextToken=%C2%B2", "limit=-1", "limit=0", "limit=" + "9" * 5000])
def test_digits_that_are_no_number_are_refused(few: Box, query: str) -> None:
    assert few.client.get(f"/v2/sandboxes?{query}", headers=few.key).status_code == 400
    if "limit" not in query:
        asked = f"/sandboxes/{few.id}/metrics?{query.replace('nextToken', 'start')}"
        assert few.client.get(asked, headers=few.key).status_code == 400


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize("until", ["²", pytest.param("9" * 5000, id="long"), "-1", "1"])
def test_a_link_that_ends_at_no_time_has_ended(few: Box, until: str) -> None:
    digest = hashlib.sha256(f"a:read:user:{few.made['envdAccessToken']}:{until}".encode()).digest()
    asked = {"path": "a", "username": "user", "signature": "v1_" + b64encode(digest).decode().rstrip("=")}
    refused = few.client.get("/files", params={**asked, "signature_expiration": until})
    assert refused.status_code == 401
    assert refused.json()["message"] in ("signature is already expired", "invalid signature")


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("seconds", ["1" + "0" * 400, "-1"])
def test_no_clock_has_this_time(few: Box, seconds: str) -> None:
    for call in ("connect", "timeout"):
        sent = f'{{"timeout": {seconds}}}'
        assert few.client.post(f"/sandboxes/{few.id}/{call}", content=sent, headers=few.key).status_code == 400


def test_a_listing_comes_whole(few: Box) -> None:
    """Paths so long that a thousand of them exceed a line, and an entry that cannot be inspected."""
    program = """
import os
os.mkdir('deep'); os.chdir('deep')
for _ in range(13):
    os.mkdir('d' * 240); os.chdir('d' * 240)
for number in range(700):
    open(f'{number:03}', 'w').close()
os.chdir('/home/user'); os.mkdir('shut'); open('shut/inside', 'w').close(); os.chmod('shut', 0o444)
"""
    assert few.run(f'python3 -c "{program}"')[0] == 0
    found = few.call("filesystem.Filesystem/ListDir", path="deep", depth=10**30)
    assert found.status_code == 200, found.text
    names = [entry["name"] for entry in found.json()["entries"]]
    assert names[13:] == [f"{number:03}" for number in range(700)]
    told = few.call("filesystem.Filesystem/ListDir", path="/home/user", depth=2)
    assert told.status_code == 200, told.text
    assert "shut" in [entry["name"] for entry in told.json()["entries"]]
    assert few.run("chmod 755 shut; rm -r deep shut")[0] == 0


def test_a_large_file_goes_out_as_it_comes(few: Box) -> None:
    assert few.run("truncate -s 68000000 large; printf end >> large")[0] == 0
    found = few.client.get("/files?path=large", headers=few.headers)
    assert (found.status_code, len(found.content), found.content[-3:]) == (200, 68_000_003, b"end")
    assert few.run("rm large")[0] == 0


def at_once(calls: list[Callable[[], httpx.Response]]) -> Counter[tuple[int, bool]]:
    """The number of responses per status, and whether they had Retry-After."""
    with ThreadPoolExecutor(len(calls)) as threads:
        answers = [future.result() for future in [threads.submit(call) for call in calls]]
    return Counter((answer.status_code, "retry-after" in answer.headers) for answer in answers)


@pytest.mark.attack("S2-30")
def test_many_at_once_get_no_more_than_they_may(guarded: Server, few: Box, tokens: dict[str, str]) -> None:
    client = guarded.client
    snapshots = at_once([lambda: client.post(f"/sandboxes/{few.id}/snapshots", json={}, headers=few.key)] * 8)
    assert snapshots == {(201, False): SNAPSHOTS, (429, True): 8 - SNAPSHOTS}
    taken = client.get("/snapshots", headers=few.key).json()
    made = at_once(
        [lambda: client.post("/v2/sandboxes", json={"templateID": taken[0]["snapshotID"]}, headers=few.key)] * 8
    )
    assert made == {(201, False): SNAPSHOTS - 1, (429, True): 9 - SNAPSHOTS}
    for held in client.get("/v2/sandboxes", headers=few.key).json():
        if held["sandboxID"] != few.id:
            client.delete(f"/sandboxes/{held['sandboxID']}", headers=few.key)
    watchers = at_once([lambda: few.call("filesystem.Filesystem/CreateWatcher", path="/home/user")] * 20)
    assert watchers == {(200, False): 16, (429, True): 4}


@pytest.mark.attack("S3-24")
async def test_a_long_path_in_a_signed_link_is_not_hashed_for_every_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is needed to send one."""
    signed: list[int] = []
    monkeypatch.setattr(envd, "find_box", lambda entry: entry)
    entry = SimpleNamespace(users=("",), sign=lambda path, *_: signed.append(len(path)) or "")
    sandboxes = SimpleNamespace(all=lambda: [entry] * 3)
    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(sandboxes=sandboxes)))
    for length in (4096, 4097, 60_000):
        query = f"path={'a' * length}&signature=v1_x".encode()
        assert (
            envd._signed_box(Request({"type": "http", "query_string": query, "headers": [], "app": app}), "read")
            is None
        )
    assert signed == [4096] * 3


@pytest.mark.attack("S3-23")
def test_whether_a_sandbox_exists_is_told_to_its_owner_only(few: Box) -> None:
    unknown = {"e2b-sandbox-id": "0" * len(few.id)}
    answers = [
        few.client.get("/health", headers=headers)
        for headers in (unknown, {"e2b-sandbox-id": few.id}, few.headers | {"x-access-token": "x"}, few.headers)
    ]
    assert [answer.status_code for answer in answers] == [502, 502, 502, 204]
    assert len({answer.text.replace(few.id, "").replace("0" * len(few.id), "") for answer in answers[:3]}) == 1


def test_watches_that_begin_at_once_are_counted(guarded: Server, tokens: dict[str, str]) -> None:
    client, key = guarded.client, {"x-api-key": tokens["few"]}
    at = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}, headers=key).json()['id']}"
    all_asked = threading.Barrier(8)

    def watch() -> int:
        with client.stream("GET", f"{at}/watch", headers=key) as answer:
            all_asked.wait(60)
            return answer.status_code

    with ThreadPoolExecutor(8) as threads:
        found = Counter(future.result() for future in [threads.submit(watch) for _ in range(8)])
    assert found == {200: 4, 429: 4}
    client.delete(at, headers=key)


def _sleeping(box: Box, config: dict[str, Any] = {"cmd": "/bin/sleep", "args": ["60"]}) -> Any:  # noqa: B006
    sent = json.dumps({"process": config}).encode()
    message = b"\0" + len(sent).to_bytes(4, "big") + sent
    return box.client.stream("POST", "/process.Process/Start", content=message, headers=box.headers)


@pytest.mark.attack("S2-30")
def test_what_is_done_with_a_sandbox_is_its_tenants_and_ends_with_the_token(
    guarded: Server, tokens: dict[str, str]
) -> None:
    box, client = Box(guarded.client, tokens["short"]), guarded.client
    with ExitStack() as streams:
        begun = [streams.enter_context(_sleeping(box)) for _ in range(CONNECTIONS)]
        refused = box.call("process.Process/List")
        assert refused.json()["code"] == "resource_exhausted" and refused.headers["retry-after"]
        ending = box.call("process.Process/SendSignal", process={"pid": 1 << 20}, signal="SIGNAL_SIGTERM")
        assert ending.json()["code"] == "not_found"
        assert b"resource_exhausted" in streams.enter_context(_sleeping(box)).read()
        assert client.get("/contexts", headers=box.headers).status_code == 429
        assert client.post("/mcp", json={}, headers=box.key).status_code == 429
        revoke = [sys.executable, "-m", "warmcell", "token", "revoke", "short", "--tokens", tokens["file"]]
        subprocess.run(revoke, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
        guarded.reload()
        assert all(b'"unavailable"' in answer.read() for answer in begun)
    assert box.call("process.Process/List").status_code == 502
    assert client.get("/v2/sandboxes", headers=box.key).status_code == 401


def test_input_that_nobody_reads_is_not_heaped_up(guarded: Server, few: Box) -> None:
    """A client that disconnects and sends again waits for its earlier request."""
    with _sleeping(few) as answer:
        pid = int(re.findall(rb'"pid": ([0-9]+)', next(answer.iter_raw()))[0])
        sent = {"process": {"pid": pid}, "input": {"stdin": b64encode(bytes(8 << 20)).decode()}}
        before = resident_bytes(guarded)
        for _ in range(8):
            with pytest.raises(httpx.ReadTimeout):
                few.client.post(
                    "/process.Process/SendInput", json=sent, headers=few.headers, timeout=httpx.Timeout(60, read=0.3)
                )
        assert resident_bytes(guarded) - before < 56 << 20
        few.call("process.Process/SendSignal", process={"pid": pid}, signal="SIGNAL_SIGKILL")


@pytest.mark.attack("S3-18")
def test_what_describes_running_programs_is_bounded(few: Box) -> None:
    """Clients list programs with their command lines and tags, which the server keeps while they run."""
    assert few.stream("process.Process/Start", process={"cmd": "true"}, tag="x" * 2000)[-1]["error"]["code"] == (
        "invalid_argument"
    )
    large = {"cmd": "sh", "args": ["-c", "exec sleep 60", *["x" * 100_000] * 15, [[]]]}
    with ExitStack() as streams:
        answers = [streams.enter_context(_sleeping(few, large)).iter_raw() for _ in range(5)]
        assert all(b'"pid"' in next(answer) for answer in answers)
        assert b"resource_exhausted" in streams.enter_context(_sleeping(few, large)).read()
        for row in few.call("process.Process/List").json()["processes"]:
            assert all(isinstance(word, str) for word in row["config"]["args"])
            few.call("process.Process/SendSignal", process={"pid": row["pid"]}, signal="SIGNAL_SIGKILL")
        assert all(b"end" in b"".join(answer) for answer in answers)


def resident_bytes(server: Server) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.attack("PT-15")
def test_a_client_that_leaves_in_its_body_is_no_failure_of_ours(start_server: Start, tokens: dict[str, str]) -> None:
    """A body with an unsigned link is not read to its end either, whichever process gets it."""
    with start_server("--tokens", tokens["file"], "--workers", "2") as server:
        head = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nX-API-KEY: {tokens['few']}\r\n"
        with _open_request(server, f"POST /v1/run HTTP/1.1\r\n{head}Content-Length: 50\r\n\r\n{{"):
            pass
        link = "POST /files?path=x&signature=v1_none HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000000\r\n\r\n"
        with _open_request(server, link) as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
        assert server.client.get("/v1/capabilities", headers={"x-api-key": tokens["few"]}).status_code == 200
        assert "internal error" not in server.stop()[1]


def _open_request(server: Server, text: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)
    connection.sendall(text.encode())
    return connection


def sending(app: Starlette, owner: str, parts: list[dict[str, Any]]) -> Request:
    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    return Request({"type": "http", "method": "POST", "headers": [], "app": app, OWNER: owner}, receive)


async def test_bodies_share_what_there_is() -> None:
    app = Starlette()
    memory = app.state.bodies = BodyMemory(100)

    async def read(owner: str, size: int) -> Request:
        request = sending(app, owner, [{"type": "http.request", "body": bytes(size)}])
        await read_body(request, 1000)
        return request

    first = await read("one", 40)
    for owner, size, status in (("one", 20, 429), ("two", 51, 429), ("two", 50, None), ("three", 20, 503)):
        if status is None:
            await read(owner, size)
            continue
        with pytest.raises(HttpError) as refused:
            await read(owner, size)
        assert refused.value.status == status
    memory.release(first.scope)
    memory.release(first.scope)
    await read("one", 50)
    with pytest.raises(ClientDisconnected):
        await read_body(sending(app, "four", [{"type": "http.disconnect"}]), 1000)


async def test_what_was_read_is_given_back() -> None:
    service = Service(Settings())
    app = make_app(service)
    app.state.bodies = BodyMemory(200)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for _ in range(3):
            assert (await client.post("/v1/sign-in", json={"code": "x" * 60})).status_code == 403
        assert (await client.post("/v1/sign-in", json={"code": "x" * 100})).status_code == 429
    await service.aclose()


def test_files_for_clients_that_do_not_read_are_bounded(start_server: Start) -> None:
    """Each is in memory until it is sent: a token has a quarter of a GiB of them."""
    with start_server() as server, ExitStack() as readers:
        identity = server.client.post("/v1/sandboxes", json={}).json()["id"]
        script = {"script": "truncate -s 60M large", "timeout": 30}
        assert server.client.post(f"/v1/sandboxes/{identity}/sh", json=script).status_code == 200
        path = f"/v1/sandboxes/{identity}/files/large"
        streams = [readers.enter_context(server.client.stream("GET", path)) for _ in range(12)]
        assert Counter(stream.status_code for stream in streams) == {200: 4, 429: 8}
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) >> 10 < 900
        assert len(streams[0].read()) == 60 << 20
        assert len(server.client.get(path).content) == 60 << 20
