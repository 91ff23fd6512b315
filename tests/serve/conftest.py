"""Real servers, started by the command, and clients that talk to them over loopback."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import httpx
import pytest
from tests.helpers import PATIENCE, has_user_namespaces, require, until

from warmcell import AsyncClient, AsyncSandbox
from warmcell.interfaces.client.client import AsyncRemoteSandbox

Either = AsyncSandbox | AsyncRemoteSandbox

ROOT = Path(__file__).resolve().parents[2]
STARTING_SECONDS = 60


class Server:
    """A running `warmcell serve`. `stop` gives its exit status."""

    def __init__(self, *options: str, prefix: Sequence[str] = (), packages: Path = ROOT / "src") -> None:
        command = [*prefix, sys.executable, "-m", "warmcell", "serve", "--port", "0", *options]
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        environment.pop("WARMCELL_TOKEN", None)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.url = _first_line(self.process.stdout)
        if not self.url:
            raise AssertionError(self.process.communicate(timeout=10)[1])
        # A client for each call would read all certificates of this machine each time.
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def reload(self) -> None:
        """Returns when it has been done: the server says so."""
        self.process.send_signal(signal.SIGHUP)
        assert self.process.stderr is not None
        assert "reload" in _first_line(self.process.stderr)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60) -> tuple[int, str]:
        self.client.close()
        self.process.send_signal(number)
        try:
            said = self.process.communicate(timeout=seconds)[1]
        finally:
            self.process.kill()
        return self.process.returncode, said


def _first_line(stream: IO[str]) -> str:
    ready, _, _ = select.select([stream], [], [], STARTING_SECONDS)
    return stream.readline().strip() if ready else ""


@pytest.fixture(scope="session")
def start_server() -> Callable[..., contextmanager[Server]]:  # type: ignore[valid-type]
    for package in ("starlette", "uvicorn", "pydantic", "httpx"):
        require(find_spec(package), f"{package} is not installed")
    require(has_user_namespaces(), "this host has no user namespaces")

    @contextmanager
    def start(*options: str, **more: Any) -> Iterator[Server]:
        server = Server(*options, **more)
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()

    return start


@pytest.fixture(scope="session")
def server(start_server: Callable[..., contextmanager[Server]]) -> Iterator[Server]:  # type: ignore[valid-type]
    """One that all tests of this directory share: open, on loopback."""
    with start_server() as started:
        _shared.append(started)
        yield started
        _shared.remove(started)


_shared: list[Server] = []


@pytest.fixture(autouse=True)
def shared_server_stays_up() -> Iterator[None]:
    """The test during which the shared server exits fails, not the ones after it."""
    yield
    for started in _shared:
        exited = started.process.poll()
        assert exited is None, f"the server exited with {exited}: {started.process.communicate(timeout=10)[1]}"


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Paths of Unix sockets have 108 bytes, which pytest's own directories may exceed."""
    with tempfile.TemporaryDirectory(prefix="wc", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextmanager
def disconnect_after(
    server: Server, path: str, body: object, headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """A client that disconnects at the end of the block, before any response."""
    address = httpx.URL(server.url)
    asking = HTTPConnection(address.host, address.port, timeout=60)
    asking.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
    try:
        yield
        assert not select.select([asking.sock], [], [], 0)[0], "it answered"
    finally:
        asking.close()


def make_token(file: Path, name: str, *options: str) -> str:
    command = [sys.executable, "-m", "warmcell", "token", "new", name, "--tokens", str(file), "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    token: str = json.loads(made.stdout)["token"]
    return token


def worker_pids(server: Server) -> list[int]:
    """With the arguments that tell them from the managers of cages."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [pid for pid in map(int, children) if b"serve.front.worker" in arguments_of(pid)]


def await_workers(server: Server, headers: Mapping[str, str] = MappingProxyType({})) -> None:
    """All of them answer this; the first one refuses a token without the scope. A request waits 20 s for a worker that
    starts, which takes longer on a loaded machine.
    """
    until(lambda: server.client.get("/metrics", headers=headers).status_code in (200, 403), 2 * PATIENCE)


def arguments_of(pid: int) -> bytes:
    """None of what has ended, whether or not its parent has asked already."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(params=["here", "there"])
async def sandbox(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Either]:
    if request.param == "here":
        async with AsyncSandbox() as made:
            yield made
    else:
        async with AsyncClient(server.url) as client, await client.sandbox() as remote:
            yield remote
