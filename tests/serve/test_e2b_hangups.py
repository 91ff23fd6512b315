"""E2B clients that hang up, collide or send floods: the next request is right, and the event loop keeps running."""

from __future__ import annotations

import gzip
import json
import select
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from tests.helpers import PATIENCE, until
from tests.serve.conftest import Server
from tests.serve.requests import Box

BINARY = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Box]:
    made = Box(server.client)
    yield made
    made.kill()


def upload(box: Box, path: str, content: bytes) -> httpx.Response:
    return box.client.post("/files", params={"path": path}, content=content, headers=box.headers | BINARY)


def download(box: Box, path: str) -> bytes:
    answer = box.client.get("/files", params={"path": path}, headers=box.headers)
    assert answer.status_code == 200, answer.text
    return answer.content


def hang_up_while_reading(server: Server, box: Box, path: str, seconds: float) -> None:
    address = httpx.URL(server.url)
    connection = HTTPConnection(address.host, address.port, timeout=60)
    connection.request("GET", "/files?" + urlencode({"path": path}), headers=box.headers)
    time.sleep(seconds)
    connection.close()


@pytest.mark.attack("S3-05")
def test_the_file_after_an_abandoned_download_is_right(server: Server, box: Box) -> None:
    upload(box, "large", b"L" * (8 << 20))
    upload(box, "small", b"small")
    for number in range(12):
        hang_up_while_reading(server, box, "large", 0.01 * number)
        assert download(box, "small") == b"small"
    assert download(box, "large") == b"L" * (8 << 20)


def test_of_two_uploads_to_one_path_the_last_complete_one_wins(box: Box) -> None:
    contents = [bytes([letter]) * (2 << 20) for letter in b"AB"]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            answers = list(threads.map(lambda content: upload(box, "both", content), contents))
            assert [answer.status_code for answer in answers] == [200, 200]
            assert download(box, "both") in contents
    assert box.run("ls -A | grep -c upload")[1] == "0\n"


def test_an_abandoned_upload_leaves_nothing(server: Server, box: Box) -> None:
    address = httpx.URL(server.url)
    upload(box, "given-up", b"old")
    for number in range(5):
        connection = HTTPConnection(address.host, address.port, timeout=60)
        connection.request("POST", "/files?path=given-up", bytes(16 << 20), box.headers | BINARY)
        time.sleep(0.02 * number)
        connection.close()
        until(lambda: box.run("ls -A | grep -c upload")[1] == "0\n")
        assert download(box, "given-up") in (b"old", bytes(16 << 20))


def test_an_upload_is_whole_while_another_one_replaces_it(box: Box) -> None:
    contents = [bytes([letter]) * (3 << 20) for letter in b"AB"]
    upload(box, "whole", contents[0])
    with ThreadPoolExecutor(2) as threads:
        for number in range(3):
            written = threads.submit(upload, box, "whole", contents[(number + 1) % 2])
            assert download(box, "whole") in contents
            assert written.result().status_code == 200


def test_an_upload_keeps_the_mode_and_follows_links(box: Box) -> None:
    box.run("mkdir -p kept; echo old > kept/script; chmod 750 kept/script; ln -s kept/script link")
    upload(box, "link", b"new\n")
    assert box.run("cat kept/script; stat -c %a kept/script; readlink link") == (0, "new\n750\nkept/script\n", "")
    box.run("mkfifo pipe")
    assert upload(box, "pipe", b"x").status_code == 400
    assert upload(box, "kept", b"x").status_code == 400
    assert upload(box, "kept/script/below", b"x").status_code in (400, 409)


@pytest.mark.attack("S3-15")
def test_a_flood_of_empty_messages_does_not_stop_the_event_loop(server: Server, box: Box) -> None:
    headers = box.headers | {"content-type": "application/connect+json"}
    with ThreadPoolExecutor(1) as threads:
        flood = threads.submit(
            httpx.post,
            f"{server.url}/process.Process/StreamInput",
            content=bytes(2 << 20),
            headers=headers,
            timeout=120,
        )
        time.sleep(0.2)
        assert server.client.get("/healthz", timeout=PATIENCE / 4).status_code == 200  # it stood still for 50 s
        assert b"messages" in flood.result().content and b"invalid_argument" in flood.result().content


STOP_SERVICE = """
import os, signal
for pid in [name for name in os.listdir('/proc') if name.isdigit()]:
    if b'op_finish' in open(f'/proc/{pid}/cmdline', 'rb').read():
        os.kill(int(pid), signal.SIGSTOP)
"""


@pytest.mark.attack("S3-18")
def test_bytes_that_wait_for_a_stopped_file_service_are_counted_and_freed(server: Server, box: Box) -> None:
    stopped = Box(server.client)
    assert upload(stopped, "stop.py", STOP_SERVICE.encode()).status_code == 200
    assert stopped.run("python3 stop.py")[0] == 0
    packed = gzip.compress(bytes(60 << 20), 1)
    headers = stopped.headers | BINARY | {"content-encoding": "gzip"}

    address = httpx.URL(server.url)
    with ExitStack() as clients:
        asking: list[HTTPConnection] = []
        for number in range(6):
            connection = HTTPConnection(address.host, address.port, timeout=PATIENCE)
            clients.callback(connection.close)
            connection.request("POST", f"/files?path=f{number}", packed, headers)
            asking.append(connection)

        def answered() -> list[HTTPConnection]:
            return [each for each in asking if select.select([each.sock], [], [], 0)[0]]

        until(lambda: len(answered()) >= 2)
        time.sleep(1)
        refused = answered()
        assert [each.getresponse().status for each in refused] == [429, 429]
    answer = box.client.post("/files?path=large", content=packed, headers=headers | box.headers)
    assert answer.status_code == 200
    stopped.kill()


@pytest.mark.attack("S3-18")
def test_the_file_service_is_never_a_program_of_the_guest(server: Server) -> None:
    """The client's PATH leads to a directory of the guest first."""
    box = Box(server.client, envVars={"PATH": "/home/user/bin:/usr/local/bin:/usr/bin:/bin"})
    forged = '#!/bin/sh\ntouch /home/user/ran; exec /usr/bin/python3 "$@"\n'
    box.run(f"mkdir bin; printf '%s' '{forged}' > bin/python3; chmod +x bin/python3; command -v python3")
    assert upload(box, "file", b"x").status_code == 200
    assert box.run("ls ran; command -v python3")[1] == "/home/user/bin/python3\n"
    box.kill()


def test_finished_commands_are_forgotten(box: Box) -> None:
    config = {"cmd": "/bin/sh", "args": ["-c", "cat; sleep 99"], "unknown": "x" * 1000}
    message = _envelope({"process": config, "tag": "kept"})
    with box.client.stream("POST", "/process.Process/Start", content=message, headers=box.headers) as started:
        assert b'"start"' in next(started.iter_raw())
    [listed] = box.call("process.Process/List").json()["processes"]
    assert listed["config"] == {"cmd": "/bin/sh", "args": config["args"]} and listed["tag"] == "kept"
    data = b64encode(b"x" * 200_000).decode()
    assert box.call("process.Process/SendInput", process={"tag": "kept"}, input={"stdin": data}).status_code == 200
    assert box.call("process.Process/SendSignal", process={"tag": "kept"}, signal="SIGNAL_SIGKILL").status_code == 200
    assert box.call("process.Process/List").json()["processes"] == []


def test_a_pause_stops_cells(server: Server) -> None:
    box = Box(server.client)
    code = "import time\nfor n in range(600): open('ticks', 'a').write('.'); time.sleep(.05)"
    cell = server.client.stream("POST", "/execute", json={"code": code}, headers=box.headers)
    with cell as answer:
        assert answer.status_code == 200
        while len(download(box, "ticks") if box.run("ls ticks")[0] == 0 else b"") < 3:
            time.sleep(0.05)
        assert server.client.post(f"/sandboxes/{box.id}/pause", json={}).status_code == 204
        sizes = [_ticks_of_fork(box)]
        time.sleep(1)
        sizes.append(_ticks_of_fork(box))
        assert sizes[0] == sizes[1] >= 3
        assert server.client.post(f"/v2/sandboxes/{box.id}/connect", json={}).status_code == 201
        until(lambda: len(download(box, "ticks")) > sizes[0])
    box.kill()


def _ticks_of_fork(box: Box) -> int:
    """A paused sandbox does not answer, but its files can be copied."""
    [fork] = box.client.post(f"/sandboxes/{box.id}/fork", json={}).json()
    made = fork["sandbox"]
    headers = {"e2b-sandbox-id": made["sandboxID"], "x-access-token": made["envdAccessToken"]}
    size = len(box.client.get("/files?path=ticks", headers=headers).content)
    assert box.client.delete(f"/sandboxes/{made['sandboxID']}").status_code == 204
    return size


@pytest.mark.attack("S3-26")
def test_a_signed_link_to_read_is_not_one_to_write(box: Box) -> None:
    """The SDKs join the fields of a signature with colons, which a path may contain."""
    path, token = "/home/user/a:write:b", box.headers["x-access-token"]
    upload(box, path, b"content")
    signature = "v1_" + b64encode(sha256(f"{path}:read:user:{token}".encode()).digest()).decode().rstrip("=")
    query = {"path": path, "username": "user", "signature": signature}
    assert box.client.get("/files", params=query).content == b"content"
    forged = {"path": "/home/user/a", "username": "b:read:user", "signature": signature}
    assert box.client.post("/files", params=forged, content=b"x").status_code == 401


STOP_ALL = """
import os, signal
for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
    if pid not in (os.getpid(), os.getppid()):
        try: os.kill(pid, signal.SIGSTOP)
        except OSError: pass
"""


@pytest.mark.parametrize("end", ["DELETE", "pause"])
def test_a_guest_that_stops_every_service_delays_no_end(server: Server, end: str) -> None:
    box = Box(server.client)
    upload(box, "stop.py", STOP_ALL.encode())
    sleeper: dict[str, Any] = {
        "process": {"cmd": "/bin/sh", "args": ["-c", "python3 stop.py & sleep 99"]},
        "stdin": False,
    }
    with pytest.raises(httpx.ReadTimeout):
        box.client.post("/process.Process/Start", content=_envelope(sleeper), headers=box.headers, timeout=2)
    started = time.monotonic()
    if end == "pause":
        assert server.client.post(f"/sandboxes/{box.id}/pause", json={}, timeout=40).status_code in (204, 400, 503)
    assert box.kill() in (204, 404)
    assert time.monotonic() - started < PATIENCE


def _envelope(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"\0" + len(data).to_bytes(4, "big") + data
