"""Clients that go, and clients that send junk: nothing is left, nothing hangs, the next request is answered."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from mcp import MCPError
from tests.helpers import until, until_async
from tests.mcp_door.conftest import COMMAND, processes_with
from tests.mcp_door.requests import HEADERS, HELLO, JUNK, READY, session_of

from warmcell.core.errors import ProvisionFailed
from warmcell.interfaces.mcp.clients import Clients
from warmcell.interfaces.mcp.server import read_resource
from warmcell.interfaces.mcp.transports import _BoundedMessages, serve_http
from warmcell.interfaces.serve.requests import BodyMemory

pytestmark = pytest.mark.needs("user namespaces")


class Talk:
    """A client by hand, over pipes."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.send(json.dumps(HELLO).encode())
        self.receive(1)
        self.send(json.dumps(READY).encode())

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def call(self, number: int, name: str, **arguments: Any) -> None:
        params = {"name": name, "arguments": arguments}
        self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode())

    def receive(self, number: int) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())
            if answer.get("id") == number:
                return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                continue


@pytest.mark.attack("PT-10")
@pytest.mark.parametrize("way", ["closes its end", "dies", "ends it by signal", "kills it"])
def test_a_client_that_goes_leaves_nothing(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    marker = f"warmcell-{secrets.token_hex(8)}"
    talk = Talk()
    try:
        talk.call(2, "run_command", command=f"setsid sh -c 'sleep 300; echo {marker}'", timeout_secs=300)
        until(lambda: processes_with(marker))
        if way in ("closes its end", "dies"):
            talk.process.stdin.close()  # type: ignore[union-attr]
            if way == "dies":
                talk.process.stdout.close()  # type: ignore[union-attr]
        else:
            talk.process.send_signal(signal.SIGTERM if way == "ends it by signal" else signal.SIGKILL)
        talk.process.wait(60)
        until(lambda: not processes_with(marker))
        if way != "kills it":
            assert talk.process.returncode == 0
            assert [name for name in os.listdir(tmp_path) if "work" in name] == []
    finally:
        talk.close()


@pytest.mark.attack("PT-15")
def test_junk_over_stdio_is_answered_or_ignored_and_the_next_request_served() -> None:
    talk = Talk()
    try:
        for number, junk in enumerate(JUNK.values(), start=100):
            talk.send(junk)
            talk.call(number, "list_files")
            assert talk.receive(number)["result"]["structuredContent"]["status"] == "success"
        talk.send(b'{"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {"x": "' + b"x" * 50_000_000 + b'"}}')
        assert "at most 16777216 bytes" in talk.receive(5)["error"]["message"]
        talk.call(6, "list_files")
        assert talk.receive(6)["result"]
        assert talk.process.poll() is None
        peak = Path("/proc", str(talk.process.pid), "status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(peak) < 250_000  # of a line without an end no more than a message is kept
    finally:
        talk.close()


@pytest.mark.parametrize("uri", ["sandbox://[", "sandbox://]/a", "sandbox://a\u2100/b", "//[", "sandbox:///a?b", ""])
async def test_a_malformed_resource_uri_is_refused_by_name(uri: str) -> None:
    """`urlsplit` raises ValueError for some: an internal error."""
    client: Any = None  # not reached
    with pytest.raises(MCPError, match="invalid resource URI"):
        await read_resource(client, uri)


@pytest.mark.attack("PT-15")
def test_what_a_client_says_about_itself_is_bounded(url: str) -> None:
    """Each such request took 25 times its size, for as long as the session lasts."""
    params = HELLO["params"] | {"capabilities": {"experimental": {f"k{number}": {} for number in range(20_000)}}}  # type: ignore[operator]
    with httpx.Client(headers=HEADERS, timeout=60) as client:
        assert client.post(url, json=HELLO | {"params": params}).status_code == 413
        assert client.post(url, json=HELLO | {"params": params}, headers=session_of(client, url)).status_code == 413


@pytest.mark.attack("PT-15")
async def test_the_messages_that_wait_are_bounded_together() -> None:
    """Each is bounded too, but any number of clients may send one and wait for the answer."""
    passed, may_answer = list[bytes](), asyncio.Event()

    async def sdk(scope: Any, receive: Any, send: Any) -> None:
        passed.append((await receive())["body"])
        if len(passed) == 1:
            await may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = _BoundedMessages(sdk)
    app._bodies = BodyMemory(200)  # of which clients with one token have half

    async def post(*parts: bytes) -> int:
        pieces, statuses = list(parts), list[int]()

        async def receive() -> Any:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(event: Any) -> None:
            if event["type"] == "http.response.start":
                statuses.append(event["status"])

        scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": []}
        await app(scope, receive, send)
        (status,) = statuses
        return status

    message = json.dumps(READY).encode().ljust(60)
    first = asyncio.ensure_future(post(message))
    await until_async(lambda: passed)
    assert await post(message) == 429
    assert await post(message[:30], message[30:]) == 429, "it is counted piece by piece"
    may_answer.set()
    assert await first == 200
    assert [await post(message), await post(message[:30], message[30:])] == [200, 200], "all was released"


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize("has_session", [True, False])
def test_junk_over_http_is_never_a_500(url: str, has_session: bool) -> None:
    with httpx.Client(timeout=60) as client:
        headers = session_of(client, url) if has_session else HEADERS
        for name, junk in JUNK.items():
            answer = client.post(url, content=junk, headers=headers)
            assert answer.status_code < 500, (name, answer.text[:300])
        body = b'{"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {"x": "' + b"x" * 50_000_000 + b'"}}'
        try:
            assert client.post(url, content=body, headers=headers).status_code == 413
        except httpx.TransportError:
            assert client.get(url, headers={"accept": "text/plain"}).status_code < 500  # it hung up early, and lives
        for wrong in ({"mcp-session-id": "0" * 32}, {"mcp-protocol-version": "1999-01-01"}, {"content-type": "a/b"}):
            assert 400 <= client.post(url, json=HELLO, headers=headers | wrong).status_code < 500
        session_of(client, url)


@pytest.mark.attack("LK-06")
def test_a_session_that_nobody_began_has_no_sandbox(url: str) -> None:
    """Requests of the newest revision have no session; one that carries somebody's id does not get in by it."""
    with httpx.Client(timeout=60) as client:
        mine = session_of(client, url)
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "list_files", "arguments": {}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "list_files"}
        answer = client.post(url, json=body, headers=mine | modern)
        assert answer.status_code == 400
        assert "initialize" in answer.text


def test_the_address_is_told_when_clients_can_connect() -> None:
    class Told(Exception):
        pass

    def hear(url: str) -> None:
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].partition("/")[0])), timeout=10).close()
        raise Told

    with pytest.raises(Told):
        asyncio.run(serve_http(None, "127.0.0.1", 0, hear))


@pytest.mark.attack("PT-10")
def test_a_token_is_asked_for_and_a_silent_client_loses_its_sandbox() -> None:
    options = ["--token", "a-long-enough-token", "--idle-timeout", "5"]  # between any two requests and looks below
    command = [*COMMAND, "--http", "--port", "0", *options]
    marker = f"warmcell-{secrets.token_hex(8)}"
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with httpx.Client(timeout=60) as client:
            assert client.post(url, json=HELLO, headers=HEADERS).status_code == 401
            wrong = HEADERS | {"authorization": "Bearer a-long-enough-tokem"}
            assert client.post(url, json=HELLO, headers=wrong).status_code == 401
            right = HEADERS | {"authorization": "Bearer a-long-enough-token"}
            client.headers.update(right)
            mine = session_of(client, url)
            code = f"import subprocess; p = subprocess.Popen(['sh', '-c', 'sleep 300; {marker}'])"
            params = {"name": "run_code", "arguments": {"code": code}}
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
            assert client.post(url, json=body, headers=mine).status_code == 200
            until(lambda: processes_with(marker))
            until(lambda: not processes_with(marker))
            assert client.post(url, json=body, headers=mine).status_code == 404
    finally:
        server.terminate()
        assert server.wait(60) == 0
        server.stdout.close()  # type: ignore[union-attr]


WRONG = {
    "--work-dir and --http cannot be combined": ["--http", "--work-dir", "."],
    "--changes and --http cannot be combined": ["--http", "--changes"],
    "other machines": ["--http", "--host", "0.0.0.0"],
    "unknown language": ["--language", "klingon"],
    "/none/such": ["--work-dir", "/none/such"],
    "--policy": ["--policy", "/none/such.toml"],
    "not a port": ["--http", "--port", "x"],
    "--timeout": ["--timeout", "-1"],
    "--python": ["--python", "/bin/true"],
}
#: One program for all of them: the SDK takes longer to load than they do.
ALL_WRONG = """
import json, sys
from warmcell.interfaces.cli import main
for options in json.loads(sys.argv[1]):
    print(main(["mcp", *options]))
    print("----", file=sys.stderr)
"""


def test_wrong_options_are_said_before_anything_listens() -> None:
    command = [sys.executable, "-c", ALL_WRONG, json.dumps([*WRONG.values()])]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "2\n" * len(WRONG)), ended.stderr
    for said, heard in zip(WRONG, ended.stderr.split("----\n")[:-1], strict=True):
        assert said in heard


@pytest.mark.attack("PT-15")
async def test_first_calls_that_fail_leave_nothing_in_their_session() -> None:
    """Each left a callback for as long as the session lasts: a tenant without room for a sandbox may go on for ever."""
    kept: list[Any] = []
    connection = SimpleNamespace(
        session_id="one", exit_stack=SimpleNamespace(push_async_callback=lambda *found: kept.append(found))
    )
    context = SimpleNamespace(request=object(), session=SimpleNamespace(_connection=connection))

    def refuse(_: Any) -> Any:
        raise ProvisionFailed("sandbox", "the token has no more sandboxes", "end another session")

    clients = Clients(refuse, None, True)
    for _ in range(3):
        with pytest.raises(ProvisionFailed):
            await clients.of(context)
    assert len(kept) == 1


@pytest.mark.attack("PT-15")
async def test_a_call_that_failed_does_not_forget_the_sandbox_of_the_next_one() -> None:
    """Two waited for the attempt that failed, and one more began between their ends: nothing ended its sandbox."""
    may_fail, ended = asyncio.Event(), list[int]()
    made: list[Any] = []
    connection = SimpleNamespace(session_id="one", exit_stack=SimpleNamespace(push_async_callback=lambda *_: None))
    context = SimpleNamespace(request=object(), session=SimpleNamespace(_connection=connection))

    def make(_: Any) -> Any:
        number = len(made)

        async def start() -> None:
            if number == 0:
                await may_fail.wait()
                raise ProvisionFailed("sandbox", "the token has no more sandboxes", "end another session")

        async def end() -> None:
            ended.append(number)

        sandbox = SimpleNamespace(start=start, tools=lambda **_: None)
        made.append(SimpleNamespace(sandbox=sandbox, end=end, max_timeout=1))
        return made[-1]

    clients = Clients(make, None, True)
    calls = [asyncio.ensure_future(clients.of(context))]
    await asyncio.sleep(0)
    # Callbacks run in order: the call that this one makes is served after the first one's end, before the second one's.
    clients._clients["one"].add_done_callback(lambda _: calls.append(asyncio.ensure_future(clients.of(context))))
    calls.append(asyncio.ensure_future(clients.of(context)))
    await asyncio.sleep(0)
    may_fail.set()
    async with asyncio.timeout(60):
        while len(calls) < 3:
            await asyncio.sleep(0)
        *failed, client = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in failed] == [ProvisionFailed] * 2 and client.place is made[1]
    await clients.end("one")
    assert ended == [0, 1]
