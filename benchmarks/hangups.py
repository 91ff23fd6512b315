"""Load on a server whose clients misbehave: a third hang up at random points, a third have guests that stop everything.

    python benchmarks/hangups.py --clients 200 --seconds 60 [--workers 2]

Counts answers by kind, and wrong ones: content of another request, another sandbox, or half a file. The others share
their sandboxes with those that hang up. At the end nothing may be left: no run, process or descriptor, and SIGTERM has
to end the server. Exits with 1 if an answer was wrong or something is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

from load import Connection, Server, start_message, start_server

#: Answers that ask the client to come again, or say that a neighbour's request is still in progress.
BUSY = (409, 429, 503)
#: A request on which nothing arrives for so long has hung.
PATIENCE = 120.0
STOP_ALL = """python3 -c "
import os, signal
for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
    if pid not in (1, os.getpid(), os.getppid()):
        try: os.kill(pid, signal.SIGSTOP)
        except OSError: pass
" """


class Load:
    """What all clients share."""

    def __init__(self, server: Server, seconds: float) -> None:
        self.server, self.deadline = server, time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def judge(self, kind: str, status: int, body: bytes, is_right: bool) -> None:
        if status in BUSY:
            self.counts["busy"] += 1
        elif status >= 400:
            self.counts[f"{kind} {status}: {body[:120].decode(errors='replace')}"] += 1
        else:
            self.counts[kind] += 1
            if not is_right:
                self.wrong.append(f"{kind}: {status} {body[:200]!r}")


class Box:
    """An E2B sandbox that several clients use."""

    def __init__(self, made: dict[str, str]) -> None:
        self.id = made["sandboxID"]
        self.headers = f"E2b-Sandbox-Id: {self.id}\r\nX-Access-Token: {made['envdAccessToken']}\r\n"


Request = tuple[str, str, bytes, str]


def run_request(mark: str) -> Request:
    code = f"import time; time.sleep({random.choice([0, 0, 0.05])}); print('{mark}')"
    return "POST", "/v1/run", json.dumps({"language": "python", "code": code, "timeout": 60}).encode(), ""


def command_request(box: Box, line: str) -> Request:
    headers = box.headers + "Content-Type: application/connect+json\r\n"
    return "POST", "/process.Process/Start", start_message.__wrapped__(line), headers


def upload_request(box: Box, name: str, data: bytes) -> Request:
    return "POST", f"/files?path={name}", data, box.headers + "Content-Type: application/octet-stream\r\n"


def download_request(box: Box, name: str) -> Request:
    return "GET", f"/files?path={name}", b"", box.headers


async def ask(load: Load, connection: Connection, request: Request) -> tuple[int, bytes]:
    async with asyncio.timeout(PATIENCE):
        try:
            return await connection.ask(*request)
        except ConnectionError:  # the server closes idle connections when there are too many
            load.counts["connection closed"] += 1
            return 503, b""


async def use_properly(load: Load, box: Box, name: str) -> None:
    """Every answer must be the one to this client's own request."""
    connection = load.server.connect()
    while not load.is_over:
        mark = f"{name}-{random.getrandbits(48):x}"
        kind = random.choice(["run", "command", "file"])
        if kind == "run":
            status, body = await ask(load, connection, run_request(mark))
            load.judge(kind, status, body, status >= 400 or json.loads(body)["stdout"] == f"{mark}\n")
        elif kind == "command":
            status, body = await ask(load, connection, command_request(box, f"printf %s {mark} | tee c-{name}"))
            refused = b'"error"' in body
            is_right = b'"exitCode": 0' in body and b64encode(mark.encode()) in body
            load.judge(kind, 503 if refused else status, body, is_right)
        else:
            data = mark.encode() * random.choice([1, 1000, 60_000])
            status, body = await ask(load, connection, upload_request(box, f"f-{name}", data))
            load.judge("upload", status, body, True)
            if status == 200:
                status, body = await ask(load, connection, download_request(box, f"f-{name}"))
                load.judge("download", status, body, body == data)
    connection.close()


async def hang_up(load: Load, box: Box, name: str) -> None:
    """Send a random part of a request, or all of it, and leave after a random time or some bytes of the answer."""
    parts = urlsplit(load.server.url)
    large = f"l-{name}".encode() * 40_000
    while not load.is_over:
        requests = [
            run_request("x"),
            command_request(box, "sleep 0.2; yes | head -c 300000"),
            upload_request(box, f"h-{name}", large),
            download_request(box, f"h-{name}"),
        ]
        method, path, body, headers = random.choice(requests)
        kind = "" if "Content-Type" in headers else "Content-Type: application/json\r\n"
        common = f"Host: {parts.hostname}:{parts.port}\r\nX-API-KEY: {load.server.token}\r\n{kind}{headers}"
        sent = f"{method} {path} HTTP/1.1\r\n{common}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(sent if random.random() < 0.6 else sent[: random.randrange(len(sent))])
                async with asyncio.timeout(random.choice([0, 0.01, 0.1, 1.0])):
                    await reader.readexactly(random.choice([1, 500, 100_000]))
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.transport.abort()
        load.counts["hung up"] += 1


async def stop_guests(load: Load, _: Box, name: str) -> None:
    """Make a sandbox of its own, let its guest stop every service in it, and end it."""
    connection = load.server.connect()
    while not load.is_over:
        status, body = await ask(load, connection, ("POST", "/sandboxes", b'{"templateID":"base","timeout":600}', ""))
        load.judge("create", status, body, True)
        if status != 201:
            await asyncio.sleep(random.random())
            continue
        box = Box(json.loads(body))
        other = load.server.connect()
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(0.2, 2)):
                await other.ask(*upload_request(box, "f", b"f"))
                await other.ask(*command_request(box, STOP_ALL))
                await other.ask(*download_request(box, "f"))
        other.close()
        status = 503
        while status in BUSY:
            began = time.monotonic()
            status, body = await ask(load, connection, ("DELETE", f"/sandboxes/{box.id}", b"", ""))
            load.judge("end of a stopped guest", status, body, time.monotonic() - began < PATIENCE)
    connection.close()


async def make_boxes(server: Server, number: int) -> list[Box]:
    connection, made = server.connect(), []
    for _ in range(number):
        status, body = await connection.ask("POST", "/sandboxes", b'{"templateID":"base","timeout":3600}')
        assert status == 201, body
        made.append(Box(json.loads(body)))
    connection.close()
    return made


async def generate(server: Server, clients: int, seconds: float) -> Load:
    boxes = await make_boxes(server, max(1, clients // 3))
    load = Load(server, seconds)
    works = []
    for number in range(clients):
        box, name = boxes[number // 3 % len(boxes)], str(number)
        works.append((use_properly, hang_up, stop_guests)[number % 3](load, box, name))
    found = await asyncio.gather(*works, return_exceptions=True)
    load.wrong += [f"client: {error!r}" for error in found if isinstance(error, BaseException)]
    connection = server.connect()
    for box in boxes:
        try:
            status, body = await ask(load, connection, ("DELETE", f"/sandboxes/{box.id}", b"", ""))
            load.judge("end", status, body, status == 204)
        except TimeoutError:
            load.wrong.append(f"end: no answer within {PATIENCE:g} s")
            connection.close()
    connection.close()
    return load


def find_leftovers(server: Server, before: tuple[int, int]) -> str:
    """What is left after the last request; half of the spares are given up every ten seconds."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = server.state()
        if state.descriptors <= before[0] + 40 and state.processes <= before[1] + 12:
            return ""
        time.sleep(1)
    return f"descriptors {before[0]} -> {state.descriptors}, processes {before[1]} -> {state.processes}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", default="1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, start_server(directory, "--workers", options.workers) as server:
        asyncio.run(generate(server, 3, 3))  # warms up
        state = server.state()
        load = asyncio.run(generate(server, options.clients, options.seconds))
        leftovers = find_leftovers(server, (state.descriptors, state.processes))
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        status = server.process.wait(60)
    for kind, number in sorted(load.counts.items()):
        print(f"{number:8}  {kind}")
    print(f"{len(load.wrong):8}  wrong", *load.wrong[:10], sep="\n          ")
    print(f"left: {leftovers or 'nothing'}; ended by SIGTERM with {status} after {time.monotonic() - began:.1f} s")
    return 1 if load.wrong or leftovers or status else 0


if __name__ == "__main__":
    sys.exit(main())
