"""`sandbox.expose`: connections to a port of the host's loopback reach that port of the guest's, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import PATIENCE, eventually

from warmcell import (
    AsyncSandbox,
    ExecutionFailed,
    ExposedPort,
    FakeBackend,
    InvalidRequest,
    Sandbox,
    SandboxDestroyed,
    SandboxError,
)
from warmcell.sandbox.local import live
from warmcell.sessions import ports
from warmcell.sessions.ports import PortListener
from warmcell.sessions.web_guard import MOST_HEAD, is_allowed, is_loopback

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]

#: Echoes each connection in capitals until its end is told, then says so; on 8001 a secret. Ready when it prints.
SERVER = """
import asyncio
heard = open("heard", "ab", buffering=0)
async def echo(reader, writer):
    while data := await reader.read(65536):
        heard.write(data[:200])
        writer.write(data.upper())
        await writer.drain()
    writer.write(b"<end>")
    writer.close()
async def other(reader, writer):
    writer.write(b"another service")
    writer.close()
async def main():
    await asyncio.start_server(echo, "127.0.0.1", 8000, backlog=512)
    await asyncio.start_server(other, "127.0.0.1", 8001)
    print("ready", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        made.write_file("server.py", SERVER)
        serve(made)
        yield made


def serve(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["python3", "server.py"])
    heard = ""
    for event in process.output():
        heard += event.data.decode()
        if "ready" in heard:
            return
    raise AssertionError(process.wait())


@pytest.fixture(scope="module")
def port(sandbox: Sandbox) -> Iterator[ExposedPort]:
    with sandbox.expose(8000) as made:
        yield made


def dial(port: ExposedPort) -> socket.socket:
    return socket.create_connection((port.host, port.port), timeout=30)


def assert_set(event: threading.Event) -> None:
    assert event.wait(120)


def all_of(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_what_it_says_of_itself(port: ExposedPort) -> None:
    assert (port.host, port.guest_port, port.url) == ("127.0.0.1", 8000, f"http://127.0.0.1:{port.port}")


def test_both_ways_and_half_closed(port: ExposedPort) -> None:
    with dial(port) as connection:
        connection.sendall(b"one ")
        assert connection.recv(100) == b"ONE "
        connection.sendall(b"two")
        connection.shutdown(socket.SHUT_WR)
        assert all_of(connection) == b"TWO<end>"


def test_more_than_any_buffer_holds(port: ExposedPort) -> None:
    """The reader is slow: the writer is held back, and every byte arrives once and in order."""
    data = bytes(range(97, 123)) * 200_000
    with dial(port) as connection:
        writer = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
        writer.start()
        time.sleep(0.2)
        assert all_of(connection) == data.upper() + b"<end>"
        writer.join()


def test_many_connections_together_and_one_after_another(port: ExposedPort) -> None:
    with contextlib.ExitStack() as opened:
        together = [opened.enter_context(dial(port)) for _ in range(200)]
        for number, connection in enumerate(together):
            connection.sendall(b"c%d" % number)
        assert [connection.recv(100) for connection in together] == [b"C%d" % number for number in range(200)]
    for _ in range(200):
        with dial(port) as connection:
            connection.sendall(b"x")
            assert connection.recv(10) == b"X"


def test_more_at_once_than_are_carried_at_a_time(sandbox: Sandbox) -> None:
    """All are taken while nobody accepts, and none is reset: each has its turn."""
    count = min(1100, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 1000), hard), hard))
    go = threading.Event()
    try:
        with sandbox.expose(8000) as port, contextlib.ExitStack() as opened:
            port._async._driver._listener._loop.call(lambda: assert_set(go))
            waiting = [opened.enter_context(dial(port)) for _ in range(count)]
            for number, connection in enumerate(waiting):
                connection.sendall(b"c%d" % number)
            go.set()
            for number, connection in enumerate(waiting):
                assert connection.recv(100) == b"C%d" % number
                connection.close()
    finally:
        go.set()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_shortage_of_descriptors_is_waited_for() -> None:
    """Here, and in the guest: neither is a reset. What lasts is."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    answers: list[OSError | dict[str, object]] = [
        OSError(errno.EMFILE, "here"),
        {"error": "", "errno": errno.EMFILE},
        {},
    ]

    def connect() -> tuple[socket.socket, Future[dict[str, object]]]:
        said = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(said, OSError):
            raise said
        answer: Future[dict[str, object]] = Future()
        answer.set_result(said)
        return socket.socket(fileno=os.dup(ours.fileno())), answer

    listener = PortListener(connect, 0)
    try:
        with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as connection:
            connection.sendall(b"PING")
            assert theirs.recv(10) == b"PING"
        answers[:] = [{"error": "nobody listens", "errno": errno.ECONNREFUSED}]
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", listener.port), timeout=30) as connection,
        ):
            connection.recv(10)
    finally:
        listener.close()
        ours.close()
        theirs.close()


def test_a_websocket_and_events_pass_as_they_come(port: ExposedPort) -> None:
    head = b"GET /chat HTTP/1.1\r\nHost: localhost:%d\r\nUpgrade: websocket\r\nOrigin: http://127.0.0.1:5173\r\n\r\n"
    with dial(port) as connection:
        connection.sendall(head % port.port)
        assert connection.recv(1000).startswith(b"GET /CHAT HTTP/1.1")
        for frame in (b"\x81\x05hello", b"\x82\x00"):
            connection.sendall(frame)
            assert connection.recv(100) == frame.upper()


@pytest.mark.attack("S2-31")
def test_a_page_of_elsewhere_is_turned_away(sandbox: Sandbox, port: ExposedPort) -> None:
    """Its name leads to 127.0.0.1 by now; its browser still says the name. Nothing of it reaches the guest."""
    for head in (b"Host: evil.example:%d\r\n" % port.port, b"Host: localhost\r\nOrigin: http://evil.example\r\n"):
        with dial(port) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\n" + head)
            time.sleep(0.05)
            connection.sendall(b"Content-Length: 6\r\n\r\nsecret")
            with contextlib.suppress(ConnectionResetError):
                said = all_of(connection)
                assert said.startswith(b"HTTP/1.1 421 ")
    with dial(port) as connection:  # after which whatever was on its way has arrived
        connection.sendall(b"last")
        assert connection.recv(100) == b"LAST"
    heard = sandbox.read_file("heard")
    assert b"last" in heard and b"secret" not in heard and b"POST" not in heard


@pytest.mark.attack("S2-31")
def test_it_listens_on_loopback_alone(port: ExposedPort) -> None:
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [row.split()[1] for row in table if row.split()[1].endswith(f":{port.port:04X}") and " 0A " in row]
    assert rows == [f"0100007F:{port.port:04X}"]
    with open("/proc/net/tcp6", encoding="ascii") as table:
        assert not any(row.split()[1].endswith(f":{port.port:04X}") and " 0A " in row for row in table)


@pytest.mark.attack("S2-31")
def test_another_sandbox_does_not_reach_it(port: ExposedPort) -> None:
    code = f"""
import socket
for host in ("127.0.0.1", "::1", "localhost"):
    try: print(socket.create_connection((host, {port.port}), 3).recv(10))
    except OSError: print("refused")
"""
    with Sandbox() as other:
        assert other.run(code).stdout == "refused\n" * 3
    with dial(port) as connection:
        connection.sendall(b"still there")
        assert connection.recv(100) == b"STILL THERE"


@pytest.mark.attack("S2-31")
def test_nothing_but_that_port(sandbox: Sandbox, port: ExposedPort) -> None:
    with dial(port) as connection:
        connection.sendall(b"CONNECT 127.0.0.1:8001 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert b"another service" not in all_of(connection)
    with sandbox.expose(8001) as other, dial(other) as connection:
        assert all_of(connection) == b"another service"


def test_where_nobody_listens_the_connection_is_reset(sandbox: Sandbox) -> None:
    with sandbox.expose(8999) as port, pytest.raises(ConnectionResetError), dial(port) as connection:
        connection.recv(10)


def test_a_port_that_is_taken_or_no_port(sandbox: Sandbox, port: ExposedPort) -> None:
    with pytest.raises(SandboxError, match=f"listen on port {port.port}"):
        sandbox.expose(8000, host_port=port.port)
    for guest_port, host_port in ((0, 0), (65536, 0), (True, 0), (8000, -1), ("8000", 0)):
        with pytest.raises(InvalidRequest):
            sandbox.expose(guest_port, host_port)  # type: ignore[arg-type]
    with Sandbox(backend=FakeBackend()) as fake, pytest.raises(InvalidRequest, match="cannot keep programs"):
        fake.expose(8000)


def test_it_ends_with_close_and_its_connections_with_it(sandbox: Sandbox) -> None:
    port = sandbox.expose(8000)
    connection = dial(port)
    connection.sendall(b"a")
    assert connection.recv(10) == b"A"
    port.close()
    port.close()
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(10) == b""
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        dial(port)


def test_it_ends_with_the_sandbox_and_outlives_a_cage() -> None:
    with Sandbox() as sandbox:
        sandbox.write_file("server.py", SERVER)
        serve(sandbox)
        port = sandbox.expose(8000)
        os.kill(sandbox._async._driver.live._cage.pid, signal.SIGKILL)  # type: ignore[union-attr]
        deadline = time.monotonic() + 30
        while sandbox._async._driver.live.current() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(ConnectionResetError), dial(port) as connection:
            connection.recv(10)
        serve(sandbox)
        with dial(port) as connection:
            connection.sendall(b"again")
            assert connection.recv(10) == b"AGAIN"
    with pytest.raises(ConnectionRefusedError):
        dial(port)
    with pytest.raises(SandboxDestroyed):
        sandbox.expose(8000)


async def test_a_port_that_is_exposed_while_its_sandbox_closes_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    listen, close = live.listen, PortListener.close
    is_listening, is_closing, is_exposed = threading.Event(), threading.Event(), threading.Event()

    def listen_late(*arguments: Any) -> PortListener:
        is_listening.set()
        assert_set(is_closing)
        return listen(*arguments)

    def close_late(listener: PortListener) -> None:
        is_closing.set()
        assert_set(is_exposed)
        close(listener)

    async with AsyncSandbox() as sandbox:
        await sandbox.expose(8000)
        monkeypatch.setattr(live, "listen", listen_late)
        monkeypatch.setattr(PortListener, "close", close_late)
        exposing = asyncio.ensure_future(sandbox.expose(8001))
        await asyncio.to_thread(assert_set, is_listening)
        closing = asyncio.ensure_future(sandbox.destroy())
        try:
            port = await exposing
        finally:
            is_exposed.set()
            await closing
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((port.host, port.port), timeout=5)


async def test_the_async_twin() -> None:
    async with AsyncSandbox() as sandbox:
        async with await sandbox.expose(8000) as port:
            assert port.url == f"http://127.0.0.1:{port.port}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((port.host, port.port), timeout=5)


@pytest.mark.parametrize(
    ("authority", "is_ours"),
    [
        *(
            (name, True)
            for name in ("localhost", "localhost:80", "LOCALHOST", "app.localhost:1", "127.0.0.1", "127.9.9.9:1")
        ),
        *((name, True) for name in ("[::1]", "[::1]:8000")),
        *(
            (name, False)
            for name in ("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0")
        ),
        *(
            (name, False)
            for name in ("10.0.0.1:80", "[::]", "2130706433", "127.1", "evil.example:127", "localhost@evil", "null")
        ),
    ],
)
def test_what_can_mean_this_machine_only(authority: str, is_ours: bool) -> None:
    assert is_loopback(authority) is is_ours


#: A script or an image of a page of another site.
EMBEDDED = b"GET /a HTTP/1.1\r\nHost: 127.0.0.1:80\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"\x16\x03\x01", True),
        (b"SSH-2.0-client\r\n", True),
        (b"HELO mail", True),
        (b"still /there", None),
        (b"still /there\n", True),
        (b"X-ANY / HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (b"LONG" * 100 + b" / HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (b"LONG" * 100 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
        (b"L" * MOST_HEAD + b" / HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (b"LONG" * 100, True),
        (b"PING", True),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\n", None),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", None),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", False),
        (b"GET / HTTP/1.0\n\n", True),
        (b"get / HTTP/1.1\nhost:a\n\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: a\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nHost: a", True),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n", False),
        (EMBEDDED + b"\r\n", False),
        (EMBEDDED + b"Referer: http://evil.example/?://localhost/\r\n\r\n", False),
        (EMBEDDED + b"Referer: http://localhost:3000/\r\n\r\n", True),
        (EMBEDDED.replace(b"no-cors", b"navigate") + b"\r\n", True),
        (EMBEDDED.replace(b"cross-site", b"same-site") + b"\r\n", True),
        (b"GET /" + b"a" * MOST_HEAD, False),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MOST_HEAD, False),
    ],
)
def test_the_first_bytes_decide(data: bytes, verdict: bool | None) -> None:
    assert is_allowed(data) is verdict
    start = data.find(b" /") + 2
    if start > 1:  # the same byte by byte, until it is decided
        piecemeal = is_allowed(data[:start])
        for end in range(start, len(data)):
            if piecemeal is not None:
                break
            piecemeal = is_allowed(data[: end + 1], end)
        assert piecemeal is verdict


@pytest.mark.attack("S3-15")
def test_a_head_that_comes_in_single_bytes_is_not_searched_again() -> None:
    """Linear: 20,000 single bytes took 3 s of the host's processor."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nX: "
    assert is_allowed(head + b"a\n", len(head)) is None  # what earlier calls have seen is not looked at
    assert is_allowed(head + b"a\r\n\r\n", len(head) + 3) is False  # but an end that began there is found


@pytest.mark.attack("S3-16")
def test_silent_connections_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do those that never end the head of a request. One that has carried something keeps its place."""
    monkeypatch.setattr(ports, "_SILENT_SECONDS", 0.0)
    guests: list[socket.socket] = []

    def connect() -> tuple[socket.socket, Future[dict[str, object]]]:
        ours, theirs = socket.socketpair()
        guests.append(theirs)
        answer: Future[dict[str, object]] = Future()
        answer.set_result({})
        return ours, answer

    listener = PortListener(connect, 0, most=3)
    with contextlib.ExitStack() as opened:
        opened.callback(lambda: [guest.close() for guest in guests])
        opened.callback(listener.close)

        def dial() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE))

        user, _, half = dial(), dial(), b"GET / HTTP/1.1\r\n"
        user.sendall(b"PING")
        assert eventually(lambda: guests) and guests[0].recv(10) == b"PING"
        dial().sendall(half)
        late = dial()
        late.sendall(b"LATE")
        assert eventually(lambda: len(guests) == 4)
        guests[3].settimeout(PATIENCE)
        assert guests[3].recv(10) == b"LATE"
        guests[0].sendall(b"PONG")
        assert user.recv(10) == b"PONG"


def test_expose_waits_for_a_listener_if_asked() -> None:
    with Sandbox() as sandbox:
        with pytest.raises(ExecutionFailed, match="nothing listens on port 8000 in the sandbox after") as failed:
            sandbox.expose(8000, wait=0.2)
        assert failed.value.fault == "guest"
        for wrong in (0, -1, float("nan"), "5"):
            with pytest.raises(InvalidRequest, match="wait"):
                sandbox.expose(8000, wait=wrong)
        sandbox.write_file("server.py", SERVER)
        sandbox.spawn(["python3", "-c", "import time, runpy; time.sleep(0.3); runpy.run_path('server.py')"])
        with sandbox.expose(8001, wait=PATIENCE) as port, dial(port) as connection:
            assert all_of(connection) == b"another service"
