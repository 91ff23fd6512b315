"""`/mcp` of `warmcell serve`: its tokens, its tenants' quotas, its end."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.helpers import until, until_async
from tests.mcp_door.conftest import processes_with
from tests.mcp_door.requests import HEADERS, HELLO, JUNK, call, session_of

from warmcell.interfaces.serve.tokens import SCOPES, add_token

pytestmark = pytest.mark.needs("user namespaces")


class Served:
    def __init__(self, directory: Path, max_timeout: int = 20) -> None:
        file = str(directory / "tokens.json")
        self.tokens = {
            name: add_token(file, name, **{"scopes": SCOPES, **quotas})[0] for name, quotas in TENANTS.items()
        }
        command = [sys.executable, "-m", "warmcell", "serve", "--port", "0", "--max-timeout", str(max_timeout)]
        command += ["--tokens", file]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip() + "/mcp"
        # The first request loads the modules of this door, for which a loaded host may take longer than a client waits.
        with httpx.Client(headers=self.headers("two") | HEADERS, timeout=60) as client:
            client.delete(self.url, headers=session_of(client, self.url)).raise_for_status()

    def headers(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[name]}"}

    @asynccontextmanager
    async def connect(self, name: str) -> AsyncIterator[Client]:
        async with (
            httpx.AsyncClient(headers=self.headers(name), timeout=60) as http,
            Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client


TENANTS: dict[str, dict[str, Any]] = {"one": {"sandboxes": 1}, "two": {}, "runs only": {"scopes": ("run",)}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.process.terminate()
    assert made.process.wait(60) == 0
    made.process.stdout.close()  # type: ignore[union-attr]


async def test_a_tenant_works_in_a_sandbox_that_counts(served: Served) -> None:
    async with served.connect("one") as client, httpx.AsyncClient(headers=served.headers("one"), timeout=60) as http:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["run_code"].input_schema["properties"]["timeout_secs"]["maximum"] == 20
        await call(client, "run_code", code="x = 41")
        assert (await call(client, "run_code", code="x + 1"))["value"] == "42"
        assert (await call(client, "run_code", code="x", timeout_secs=21))["status"] == "error"
        mine = (await http.get(served.url.replace("/mcp", "/v1/sandboxes"))).json()
        assert [held["metadata"] for held in mine] == [{"door": "mcp"}]
        refused = await http.post(served.url, json=HELLO, headers=HEADERS)
        assert refused.status_code == 429
    async with httpx.AsyncClient(headers=served.headers("one"), timeout=60) as http:
        async with asyncio.timeout(60):
            while (await http.get(served.url.replace("/mcp", "/v1/sandboxes"))).json():
                await asyncio.sleep(0.05)
        # One over there leaves no room for one here, and the session can be used when there is.
        made = (await http.post(served.url.replace("/mcp", "/v1/sandboxes"), json={"timeout": 10})).json()
        async with served.connect("one") as client:
            with pytest.raises(MCPError, match="already has 1 sandboxes"):
                await client.call_tool("list_files", {})
            await http.delete(served.url.replace("/mcp", f"/v1/sandboxes/{made['id']}"))
            assert (await call(client, "list_files"))["entries"] == []


@pytest.mark.attack("LK-06")
@pytest.mark.attack("PT-15")
def test_what_a_client_says_about_itself_is_bounded(served: Served) -> None:
    """Ten such requests took gigabytes, for as long as the sessions last."""
    params = HELLO["params"] | {"capabilities": {"experimental": {f"k{number}": {} for number in range(20_000)}}}  # type: ignore[operator]
    with httpx.Client(headers=served.headers("two") | HEADERS, timeout=60) as client:
        assert client.post(served.url, json=HELLO | {"params": params}).status_code == 413
        session = session_of(client, served.url)
        assert client.post(served.url, json=HELLO | {"params": params}, headers=session).status_code == 413
        assert client.post(served.url, json=HELLO, headers=session).status_code == 200
        assert client.delete(served.url, headers=session).status_code == 200


def test_who_has_no_token_or_anothers_session_gets_nothing(served: Served) -> None:
    with httpx.Client(timeout=60) as client:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wc_nobodys"}, 401),
            (served.headers("runs only"), 403),
            (served.headers("two") | {"origin": "http://elsewhere.example"}, 403),
        ):
            assert client.post(served.url, json=HELLO, headers=HEADERS | headers).status_code == status
        client.headers.update(served.headers("two"))
        theirs = session_of(client, served.url)
        listing = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "list_files", "arguments": {}}}
        assert client.post(served.url, json=listing, headers=theirs).status_code == 200
        stolen = theirs | served.headers("one")
        assert client.post(served.url, json=listing, headers=stolen).status_code == 404
        assert client.delete(served.url, headers=stolen).status_code == 404
        for name, junk in JUNK.items():
            assert client.post(served.url, content=junk, headers=theirs).status_code < 500, name
        assert client.post(served.url, json=listing, headers=theirs).status_code == 200
        assert client.delete(served.url, headers=theirs).status_code == 200


@pytest.mark.attack("S3-18")
@pytest.mark.parametrize("is_tenant", [True, False])
def test_the_call_of_a_client_that_hung_up_ends(tmp_path: Path, url: str, is_tenant: bool) -> None:
    """Else such calls, each with its arguments, pile up in the queue; nothing counted them."""
    served, marker = Served(tmp_path, 300) if is_tenant else None, f"warmcell-{secrets.token_hex(8)}"
    url, own = (served.url, served.headers("two")) if served is not None else (url, {})
    arguments = {"command": f"sh -c 'sleep 300; echo {marker}'", "timeout_secs": 300}
    calling = {"jsonrpc": "2.0", "id": 3, "method": "tools/call"}
    calling |= {"params": {"name": "run_command", "arguments": arguments}}
    try:
        with httpx.Client(headers=own, timeout=60) as client:
            session = session_of(client, url)
            with client.stream("POST", url, json=calling, headers=session):
                until(lambda: processes_with(marker))
            until(lambda: not processes_with(marker))
            listing = calling | {"id": 4, "params": {"name": "list_files", "arguments": {}}}
            assert client.post(url, json=listing, headers=session).status_code == 200
    finally:
        if served is not None:
            served.process.terminate()
            assert served.process.wait(60) == 0
            served.process.stdout.close()  # type: ignore[union-attr]


@pytest.mark.attack("PT-09")
@pytest.mark.attack("PT-10")
async def test_a_run_ends_with_its_call_and_a_client_with_the_server(tmp_path: Path) -> None:
    """Cancelled calls kill; SIGTERM ends streams that would stand for ever, and nothing is left."""
    served, marker = Served(tmp_path), f"warmcell-{secrets.token_hex(8)}"
    command: dict[str, Any] = {"command": f"sh -c 'sleep 300; echo {marker}'", "timeout_secs": 20}
    try:
        async with served.connect("two") as client:
            running = asyncio.create_task(client.call_tool("run_command", command))
            await until_async(lambda: processes_with(marker))
            running.cancel()
            await until_async(lambda: not processes_with(marker))
            await call(
                client, "run_code", code=f"import subprocess; p = subprocess.Popen(['sh', '-c', 'sleep 300; {marker}'])"
            )
            await until_async(lambda: processes_with(marker))
            served.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.process.wait, 25) == 0  # less than a stream would be waited for
    except (httpx.HTTPError, MCPError, ExceptionGroup):
        pass  # the client says goodbye to nobody
    finally:
        served.process.kill()
        served.process.stdout.close()  # type: ignore[union-attr]
    assert served.process.wait(60) == 0
    until(lambda: not processes_with(marker))
