"""Load generation for benchmarks/server.py: cheap connections, and figures of the server's processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Connection(asyncio.Protocol):
    """One persistent connection, one request at a time. A real client's own work would count as the server's."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port
        self._common = f"Host: {self._host}:{self._port}\r\nX-API-KEY: {token}\r\n"
        self._transport: Any = None
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        """The status and the whole body."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
        self._received, self._answer = b"", loop.create_future()
        kind = "" if "Content-Type" in headers else "Content-Type: application/json\r\n"
        length = f"Content-Length: {len(body)}\r\n"
        self._transport.write(f"{method} {path} HTTP/1.1\r\n{self._common}{kind}{headers}{length}\r\n".encode() + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        found = whole_answer(self._received)
        if found is not None and self._answer is not None and not self._answer.done():
            if b"\r\nconnection: close\r\n" in self._received.partition(b"\r\n\r\n")[0].lower() + b"\r\n":
                self.close()
            self._answer.set_result(found)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server has hung up"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None


def whole_answer(received: bytes) -> tuple[int, bytes] | None:
    """Status and body of an HTTP response, or None if it is incomplete."""
    head, found, rest = received.partition(b"\r\n\r\n")
    if not found:
        return None
    head = head.lower()
    status = int(head[9:12])
    if b"transfer-encoding: chunked" in head:
        body = _join(rest) if rest.endswith(b"0\r\n\r\n") else None
        return None if body is None else (status, body)
    size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    return (status, rest) if len(rest) >= size else None


def _join(rest: bytes) -> bytes | None:
    """Join the chunks of a body; None if the last one is missing."""
    parts = []
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            return b"".join(parts)
        parts.append(rest[:size])
        rest = rest[size + 2 :]
    return None


@cache
def start_message(line: str) -> bytes:
    asked = {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line], "envs": {}}, "stdin": False}
    data = json.dumps(asked).encode()
    return b"\0" + len(data).to_bytes(4, "big") + data


class Box:
    """A sandbox, used by the same calls as E2B's clients make."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.id = ""
        self._headers = ""

    async def create(self) -> None:
        status, body = await self._connection.ask("POST", "/sandboxes", b'{"templateID":"base","timeout":600}')
        made = json.loads(body)
        if status != 201:
            raise RuntimeError(f"create: {status} {made}")
        self.id = made["sandboxID"]
        self._headers = f"E2b-Sandbox-Id: {self.id}\r\nX-Access-Token: {made['envdAccessToken']}\r\n"

    async def command(self, line: str = "echo hello") -> bool:
        """Run a command; whether it ended with status 0."""
        headers = self._headers + "Content-Type: application/connect+json\r\n"
        status, body = await self._connection.ask("POST", "/process.Process/Start", start_message(line), headers)
        return status == 200 and b'"exitCode": 0' in body

    async def kill(self) -> bool:
        return (await self._connection.ask("DELETE", f"/sandboxes/{self.id}"))[0] == 204


class State(NamedTuple):
    """The server and its descendants."""

    resident_kb: int
    descriptors: int
    processes: int
    proportional_kb: int


class Server:
    """A running `warmcell serve` with one tenant with high limits."""

    def __init__(self, process: subprocess.Popen[str], url: str, token: str) -> None:
        self.process, self.url, self.token = process, url, token

    def connect(self) -> Connection:
        return Connection(self.url, self.token)

    def state(self) -> State:
        pid, below = self.process.pid, descendants(self.process.pid)
        sizes = [_size(each, "smaps_rollup", "Pss:") for each in (pid, *below)]
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return State(_size(pid, "status", "VmRSS:"), descriptors, len(below), sum(sizes))


@contextmanager
def start_server(directory: str, *options: str) -> Iterator[Server]:
    tokens = str(Path(tempfile.mkdtemp(dir=directory)) / "tokens.json")
    command = [sys.executable, "-m", "warmcell"]
    quotas = ["--runs", "4096", "--sandboxes", "4096", "--rate", "1000000"]
    making = [*command, "token", "new", "load", "--tokens", tokens, *quotas]
    token = subprocess.run(making, check=True, capture_output=True, text=True).stdout.strip()
    serving = [*command, "serve", "--port", "0", "--tokens", tokens, *options]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(process, process.stdout.readline().strip(), token)
        finally:
            process.terminate()


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        others = [task for task in os.listdir(f"/proc/{pid}/task") if task != str(pid)]
        for task in others:
            children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    except OSError:
        return []
    return [below for child in children for below in (int(child), *descendants(int(child)))]


def _size(pid: int, name: str, field: str) -> int:
    """Proportional set size in kB. A sleeping init is not readable and counts as two pages; an ended process as 0."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(field)), 0)
    except PermissionError:
        return 8
    except OSError:
        return 0


async def for_a_while(
    clients: int, seconds: float, step: Callable[[int], Coroutine[Any, Any, bool]]
) -> tuple[int, int, float]:
    """Call `step` in a loop in concurrent tasks; return the calls, the failures and the seconds of each."""
    loop = asyncio.get_running_loop()
    began, counts = loop.time(), [0, 0]

    async def client(number: int) -> None:
        while loop.time() < began + seconds:
            is_good = await step(number)
            counts[0] += 1
            counts[1] += not is_good

    await asyncio.gather(*(client(number) for number in range(clients)))
    return counts[0], counts[1], loop.time() - began
