"""The cost of safe networking: a fetch against plain httpx, the egress proxy against direct loopback.

    python benchmarks/net.py [--fetches 300] [--megabytes 256]

Everything runs on loopback, where the network itself costs next to nothing: these are the worst ratios there are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

from warmcell.net.fetch.safe_client import SafeClient
from warmcell.net.proxy.egress_proxy import EgressProxy
from warmcell.net.rules.fetch_policy import FetchPolicy

BODY = b"x" * 1024
PIECE = b"\0" * (1 << 18)


class LocalServer:
    """A server in a thread: `/` sends 1 KiB and keeps the connection, `/big/N` sends N megabytes and closes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            received = b""
            while data := connection.recv(65536):
                received += data
                if b"\r\n\r\n" in received:
                    path = received.split(b" ", 2)[1]
                    received = b""
                    if path.startswith(b"/big/"):
                        return self._pour(connection, int(path.removeprefix(b"/big/")))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY))

    def _pour(self, connection: socket.socket, megabytes: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (megabytes << 20))
        for _ in range(megabytes << 20 >> 18):
            connection.sendall(PIECE)

    def close(self) -> None:
        self._listener.close()


async def medians(ways: dict[str, Callable[[], Awaitable[object]]], count: int) -> list[tuple[str, float]]:
    """Median milliseconds of each way, interleaved so that noise on the host affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 5):
        for name, fetch in ways.items():
            began = time.perf_counter()
            await fetch()
            if number >= 5:
                times[name].append(time.perf_counter() - began)
    return [(name, statistics.median(taken) * 1000) for name, taken in times.items()]


async def fetch_rows(server: LocalServer, count: int) -> list[tuple[str, float]]:
    import httpx

    url = f"http://127.0.0.1:{server.port}/"
    safe = SafeClient(FetchPolicy((f"127.0.0.1:{server.port}",)))
    async with httpx.AsyncClient(headers={"Connection": "close"}) as closing, httpx.AsyncClient() as keeping:
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "warmcell SafeClient.fetch": lambda: safe.fetch(url),
            "httpx, a connection for each request": lambda: closing.get(url),
            "httpx, one connection kept": lambda: keeping.get(url),
        }
        return await medians(ways, count)


def megabytes_per_second(port: int, opening: bytes, request: bytes, megabytes: int) -> float:
    """The rate of the big response after `opening` (a CONNECT, or nothing) and the request."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        if opening:
            connection.sendall(opening)
            connection.recv(65536)
        began = time.perf_counter()
        connection.sendall(request)
        wanted, buffer = megabytes << 20, bytearray(1 << 18)
        got = 0
        while got < wanted:
            count = connection.recv_into(buffer)
            if not count:
                raise SystemExit(f"the connection ended after {got} bytes")
            got += count
        return megabytes / (time.perf_counter() - began)


def proxy_rows(server: LocalServer, megabytes: int) -> Iterator[tuple[str, float]]:
    where = f"127.0.0.1:{server.port}"
    inside = f"GET /big/{megabytes} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
    absolute = f"GET http://{where}/big/{megabytes} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
    opening = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
    with EgressProxy(socket.create_server(("127.0.0.1", 0)), FetchPolicy((where,))) as proxy:
        yield "direct", megabytes_per_second(server.port, b"", inside, megabytes)
        yield "through a CONNECT tunnel", megabytes_per_second(proxy.port, opening, inside, megabytes)
        yield "through plain HTTP proxying", megabytes_per_second(proxy.port, b"", absolute, megabytes)


def table(title: str, unit: str, rows: list[tuple[str, float]], base: str) -> None:
    reference = dict(rows)[base]
    print(f"\n{title}\n")
    print(f"| what | {unit} | ratio |\n|---|---:|---:|")
    for name, value in rows:
        print(f"| {name} | {value:.2f} | {value / reference:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetches", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=256)
    options = parser.parse_args()
    server = LocalServer()
    fetches = asyncio.run(fetch_rows(server, options.fetches))
    table("A fetch of 1 KiB", "median ms", fetches, "httpx, a connection for each request")
    table("Egress proxy", "MB/s", list(proxy_rows(server, options.megabytes)), "direct")
    server.close()


if __name__ == "__main__":
    main()
