"""OpenEnv: `EnvClient.from_docker_image(image, provider=WarmcellProvider())` and `WarmcellRuntimeProvider`."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from warmcell.core.errors import ImageNotFound, SandboxError
from warmcell.core.light import on_error
from warmcell.core.types import Limits
from warmcell.images import ImageStore
from warmcell.interfaces.seats import framework
from warmcell.sandbox.blocking import Sandbox
from warmcell.sandbox.processes import Process

with framework("openenv"):
    from openenv.core.containers.runtime.providers import ContainerProvider, RuntimeProvider

_PORT = 8000
_POLL_SECONDS = 0.1
_HEALTHY = re.compile(rb"HTTP/1\.[01] 200[ \r\n]")
_LONGEST_STATUS = 1024


class _Server:
    """An environment's server in a live cage, and a port of this host's loopback that leads to it."""

    def __init__(
        self, settings: Mapping[str, Any], command: Sequence[str], cwd: str, guest_port: int, port: int
    ) -> None:
        sandbox = Sandbox(**settings, live=True)
        self.close = sandbox.close
        with on_error(sandbox.close):
            # `spawn` takes directories of the work directory only.
            words = ["sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", cwd, *command]
            self._process: Process = sandbox.spawn(words, stdin=False)
            exposed = sandbox.expose(guest_port, port)
            self.base_url, self._address = exposed.url.rstrip("/"), (exposed.host, exposed.port)

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not is_healthy(self._address, deadline - time.monotonic()):
            if not self._process.is_running:
                raise RuntimeError(f"the environment's server exited: {self._describe_exit()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the environment's server did not become ready within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def _describe_exit(self) -> str:
        result = self._process.wait()
        return f"status {result.exit_code}: {(result.stderr or result.stdout).strip()[-500:]}"


def is_healthy(address: tuple[str, int], seconds: float) -> bool:
    """Whether `/health` answers with status 200. Only the first line is read, and only until the time is over.

    The guest writes the answer: a client that follows redirects would make requests in the host's network for it.
    """
    deadline = time.monotonic() + max(0.1, seconds)
    answer = b""
    try:
        with socket.create_connection(address, deadline - time.monotonic()) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while b"\n" not in answer and len(answer) < _LONGEST_STATUS and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                piece = connection.recv(_LONGEST_STATUS)
                if not piece:
                    break
                answer += piece
    except OSError:
        return False
    return _HEALTHY.match(answer) is not None


class WarmcellProvider(ContainerProvider):
    """Runs an environment's image in a cage. The image is in the store, or is pulled. There is no network."""

    def __init__(self, *, memory_mb: int = 2048, store: str | None = None) -> None:
        self._memory, self._store = memory_mb, ImageStore(store)
        self._server: _Server | None = None

    def start_container(
        self, image: str, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start the server and return its URL. `guest_port` and `command` replace 8000 and the image's command."""
        if self._server is not None:
            raise RuntimeError("this provider has a container already: stop it first")
        guest_port, command = kwargs.pop("guest_port", _PORT), kwargs.pop("command", None)
        if kwargs:
            raise ValueError(f"not supported by Warmcell: {', '.join(sorted(kwargs))}")
        try:
            try:
                found = self._store.get(image)
            except ImageNotFound:
                found = self._store.pull(image)
            words = command or [*found.config.entrypoint, *found.config.cmd]
            if not words:
                raise RuntimeError(f"the image {image!r} names no command: pass command=[...]")
            settings = {"image": found, "user": "root", "env": env_vars or {}, "limits": Limits(memory_mb=self._memory)}
            self._server = _Server(settings, words, found.config.workdir, guest_port, port or 0)
        except SandboxError as error:
            raise RuntimeError(f"cannot start {image!r}: {error}") from error
        return self._server.base_url

    def stop_container(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        if self._server is None:
            raise RuntimeError("there is no container: start it first")
        self._server.wait(timeout_s)


class WarmcellRuntimeProvider(RuntimeProvider):
    """Runs an environment's server from a directory, without an image: `command` listens on 127.0.0.1:`guest_port`."""

    def __init__(
        self, project_path: str, command: Sequence[str], *, guest_port: int = _PORT, memory_mb: int = 2048
    ) -> None:
        self._path, self._command = project_path, tuple(command)
        self._guest_port, self._memory = guest_port, memory_mb
        self._server: _Server | None = None

    def start(self, port: int | None = None, env_vars: dict[str, str] | None = None, workers: int = 1, **_: Any) -> str:
        if self._server is not None:
            raise RuntimeError("this provider is running already: stop it first")
        settings = {"work_dir": self._path, "env": env_vars or {}, "limits": Limits(memory_mb=self._memory)}
        try:
            self._server = _Server(settings, self._command, "/work", self._guest_port, port or 0)
        except SandboxError as error:
            raise RuntimeError(f"cannot start the environment's server: {error}") from error
        return self._server.base_url

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        if self._server is None:
            raise RuntimeError("the provider is not running: start it first")
        self._server.wait(timeout_s)
