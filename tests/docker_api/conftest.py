"""A real server on a socket of its own, with an image of one static program, and the Docker SDK for Python."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.helpers import has_user_namespaces, require, until
from tests.image_roots import add_busybox

from warmcell.images import ImageStore

docker = pytest.importorskip("docker")
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "sh ls cat id echo ps sleep tail mkdir kill wc env httpd stty setsid true".split()


class DockerServer:
    """`warmcell serve --docker-socket`. Paths of sockets are short, so it has a directory of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.socket, self.binds = directory / "d.sock", directory / "binds"
        self.binds.mkdir()
        (directory / "outside").mkdir()
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        root = directory / "root"
        add_busybox(root, PROGRAMS)
        ImageStore(directory / "cache/warmcell/images").import_(root, "busybox:1")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_CACHE_HOME": str(directory / "cache"),
            "TMPDIR": str(self.temporary),
            "DOCKER_HOST": f"unix://{self.socket}",
        }
        own = ("--docker-socket", str(self.socket), "--docker-binds", str(self.binds))
        command = [sys.executable, "-m", "warmcell", "serve", *own, *options]
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != f"unix://{self.socket}":
            raise AssertionError(self.process.communicate(timeout=10)[1])
        self.client = docker.DockerClient(base_url=f"unix://{self.socket}", timeout=60)

    def connect(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(60)
        connected.connect(str(self.socket))
        return connected

    def send(self, head: str, body: bytes = b"") -> socket.socket:
        """A request whose answer is not read."""
        connected = self.connect()
        lines = f"{head} HTTP/1.1\r\nHost: d\r\nContent-Length: {len(body)}\r\n"
        connected.sendall(lines.encode() + b"\r\n" + body)
        return connected

    def children(self) -> list[str]:
        """Names of the processes below the server."""
        listed = subprocess.run(
            ["ps", "-o", "comm=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return listed.stdout.split()

    def stop(self) -> tuple[int, str]:
        self.client.close()
        self.process.terminate()
        try:
            said = self.process.communicate(timeout=60)[1]
        finally:
            self.process.kill()
        return self.process.returncode, said


@pytest.fixture(scope="module")
def server() -> Iterator[DockerServer]:
    require(has_user_namespaces(), "this host has no user namespaces")
    with TemporaryDirectory(prefix="wd-") as directory:
        started = DockerServer(Path(directory))
        try:
            yield started
        finally:
            status, said = started.stop()
            assert (status, said) == (0, "")
            assert not started.socket.exists()
            assert list(started.temporary.iterdir()) == []


@pytest.fixture
def client(server: DockerServer) -> Iterator[docker.DockerClient]:
    """No test leaves a container to the next."""
    yield server.client
    for container in server.client.containers.list(all=True):
        container.remove(force=True)
    until(lambda: not server.client.containers.list(all=True))


@pytest.fixture
def sleeper(client: docker.DockerClient) -> docker.models.containers.Container:
    """A container that runs until it is stopped."""
    return client.containers.run("busybox:1", "tail -f /dev/null", detach=True)


def has_docker_command() -> bool:
    return shutil.which("docker") is not None
