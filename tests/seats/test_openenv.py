"""OpenEnv: our providers start an environment's server, from an image and from a directory."""

from __future__ import annotations

import socket
import threading
from importlib.util import find_spec
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from tests.helpers import PATIENCE, has_user_namespaces, require
from tests.image_roots import add_busybox

from warmcell.images import ImageStore

if find_spec("openenv") is None:  # not installed by scripts/test-seats
    pytest.skip("openenv is not installed", allow_module_level=True)
#: Their first import compiles hundreds of modules, and a starved host takes minutes for it.
pytestmark = pytest.mark.timeout(1800)
DOCKERFILE = "FROM base:1\nWORKDIR /www\nRUN echo ok > health\nCMD [{command}]\n"
SERVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok\\n")
HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def get(url: str) -> bytes:
    with build_opener(ProxyHandler({})).open(url, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def build(place: Path, name: str, *command: str) -> None:
    context = place / name
    context.mkdir()
    words = ", ".join(f'"{word}"' for word in command)
    (context / "Dockerfile").write_text(DOCKERFILE.format(command=words))
    ImageStore(place / "store").build(context, name=f"{name}:1")


def test_an_image(tmp_path: Path) -> None:
    from warmcell.interfaces.seats.openenv import WarmcellProvider

    require(has_user_namespaces(), "this host has no user namespaces")
    add_busybox(tmp_path / "root", ("sh", "httpd", "echo", "cat"))
    ImageStore(tmp_path / "store").import_(tmp_path / "root", "base:1")
    build(tmp_path, "environment", "httpd", "-f", "-p", "8000")
    build(tmp_path, "failing", "sh", "-c", "echo no model >&2; exit 4")
    provider = WarmcellProvider(store=str(tmp_path / "store"))
    try:
        url = provider.start_container("environment:1", env_vars={"WORD": "hi"})
        provider.wait_for_ready(url, timeout_s=PATIENCE)
        assert get(f"{url}/health") == b"ok\n"
        provider.stop_container()
        with pytest.raises(OSError):
            get(f"{url}/health")
        failing = provider.start_container("failing:1")
        with pytest.raises(RuntimeError, match="status 4: no model"):
            provider.wait_for_ready(failing, timeout_s=PATIENCE)
    finally:
        provider.stop_container()
    with pytest.raises(ValueError, match="memory_gb"):
        provider.start_container("environment:1", memory_gb=2)


def test_a_directory(tmp_path: Path) -> None:
    from warmcell.interfaces.seats.openenv import WarmcellRuntimeProvider

    (tmp_path / "server.py").write_text(SERVER)
    with WarmcellRuntimeProvider(str(tmp_path), ["python3", "server.py"]) as provider:
        provider.wait_for_ready(timeout_s=PATIENCE)


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),  # the rest may never come
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 503 Service Unavailable\r\n", False),
        (b"no newline" * 1000, False),
        (b"", False),
    ],
)
def test_the_first_line_of_the_answer_decides(answer: bytes, is_right: bool) -> None:
    from warmcell.interfaces.seats.openenv import is_healthy

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        port = elsewhere.getsockname()[1]
        server.settimeout(PATIENCE)
        asked = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer.replace(b"%d", b"%d" % port))
                if answer:
                    asked.wait(PATIENCE)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert is_healthy(server.getsockname(), PATIENCE) is is_right
        asked.set()
        thread.join(PATIENCE)
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):  # no request came
            elsewhere.accept()
