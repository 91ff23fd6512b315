"""HttpSandbox: the driver of a sandbox on a server."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import NetworkingDisabled, SandboxDestroyed, SessionNotFound
from warmcell.core.output_events import StreamEvent
from warmcell.core.types import BackendCapabilities, EffectiveLimits, ExecResult
from warmcell.core.types import Connection as EgressConnection
from warmcell.interfaces.client.connection import Connection
from warmcell.interfaces.client.endpoint import SandboxEndpoint
from warmcell.interfaces.client.http_files import HttpFiles
from warmcell.interfaces.client.http_port import HttpPort
from warmcell.interfaces.client.http_process import HttpProcess
from warmcell.interfaces.client.http_session import HttpSession
from warmcell.interfaces.client.upload_body import optional_path_text
from warmcell.interfaces.client.wire import content, outcome, record, stream_event
from warmcell.sandbox.interface import ProcessInfo, RunOptions, SpawnOptions
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.net import FetchRequest, FetchResponse


class HttpSandbox:
    def __init__(
        self, connection: Connection, capabilities: Callable[[], BackendCapabilities], created: Mapping[str, Any]
    ) -> None:
        """`created` is the server's description of the sandbox."""
        self.id: str = created["id"]
        self.timeout: float = created["timeout"]
        self.limits: EffectiveLimits = record(EffectiveLimits, created["limits"])
        self.place = connection.url
        self.capabilities = capabilities
        self._use(SandboxEndpoint(connection, self.id))

    def _use(self, endpoint: SandboxEndpoint) -> None:
        self._endpoint = endpoint
        self.files = HttpFiles(endpoint)
        self.runs = HttpRuns(endpoint)
        self.live = HttpLive(endpoint, self._sibling)

    @property
    def is_closed(self) -> bool:
        return self._endpoint.is_closed

    @property
    def session_languages(self) -> Sequence[str]:
        from warmcell.backends.process.session_worker import LANGUAGES

        return tuple(LANGUAGES)

    def check_open(self) -> None:
        self._endpoint.check_open()

    async def start(self) -> None:
        """The server started it."""

    async def available_tools(self) -> list[str]:
        names: list[str] = await self._endpoint.request("GET", "tools")
        return names

    async def install(self, packages: Sequence[str], manager: str) -> None:
        body = {"packages": list(packages), "manager": manager}
        await self._endpoint.request("POST", "install", json=body, seconds=600)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        """Guests of a server have the network of its policy; the host's own fetch is not offered."""
        raise NetworkingDisabled

    async def update_network(self, update: object) -> None:
        from warmcell.net.rules.network_update import read_update, to_plain

        await self._endpoint.request("PUT", "network", json=to_plain(read_update(update)))

    async def connections(self) -> list[EgressConnection]:
        return [record(EgressConnection, plain) for plain in await self._endpoint.request("GET", "connections")]

    async def fork(self, snapshot: str | None) -> HttpSandbox:
        body = {"snapshot": None if snapshot is None else str(snapshot)}
        return self._sibling(await self._endpoint.request("POST", "fork", json=body, seconds=120))

    def _sibling(self, created: Mapping[str, Any]) -> HttpSandbox:
        """Another sandbox of the same server."""
        return HttpSandbox(self._endpoint.connection, self.capabilities, created)

    async def close(self) -> None:
        if self.is_closed:
            return
        self._endpoint.is_closed = True
        await self.live.close_ports()
        try:
            await self._endpoint.connection.request("DELETE", self._endpoint.path)
        except (SandboxDestroyed, SessionNotFound):
            return  # its lifetime was over


class HttpRuns:
    def __init__(self, endpoint: SandboxEndpoint) -> None:
        self._endpoint = endpoint

    async def command(self, argv: Sequence[str], cwd: AnyPath | None, options: RunOptions) -> ExecResult:
        body = {"command": argv[0], "args": list(argv[1:]), "cwd": optional_path_text(cwd)}
        return await self._run("exec", body, options)

    async def script(self, script: str, cwd: AnyPath | None, options: RunOptions) -> ExecResult:
        return await self._run("sh", {"script": script, "cwd": optional_path_text(cwd)}, options)

    async def code(self, code: str | bytes, language: str, options: RunOptions) -> ExecResult:
        return await self._run("run", {"code": code, "language": language}, options)

    async def _run(self, route: str, body: dict[str, Any], options: RunOptions) -> ExecResult:
        body |= {"stdin": None if options.stdin is None else content(options.stdin), "timeout": options.timeout}
        if options.follow is None:
            return outcome(await self._endpoint.request("POST", route, json=body, seconds=options.timeout))
        return await options.follow(self._events(route, body))

    async def _events(self, route: str, body: dict[str, Any]) -> AsyncIterator[StreamEvent]:
        async with self._endpoint.events("POST", route, json=body) as events:
            async for name, data, _ in events:
                yield stream_event(name, data)


class HttpLive:
    def __init__(self, endpoint: SandboxEndpoint, make_sandbox: Callable[[Mapping[str, Any]], HttpSandbox]) -> None:
        self._endpoint, self._make_sandbox = endpoint, make_sandbox
        self._ports: set[HttpPort] = set()

    async def spawn(self, options: SpawnOptions) -> HttpProcess:
        body = {
            "command": options.command if isinstance(options.command, str) else list(options.command),
            "cwd": optional_path_text(options.cwd),
            "env": dict(options.env),
            "pty": None if options.pty is None else dataclasses.asdict(options.pty),
            "stdin": options.stdin,
            "timeout": options.timeout,
        }
        return self._process(await self._endpoint.request("POST", "processes", json=body))

    async def processes(self) -> list[ProcessInfo]:
        return [record(ProcessInfo, info) for info in await self._endpoint.request("GET", "processes")]

    async def attach(self, pid: int) -> HttpProcess:
        return self._process(await self._endpoint.request("GET", f"processes/{int(pid)}"))

    def _process(self, info: Mapping[str, Any]) -> HttpProcess:
        return HttpProcess(self._endpoint, record(ProcessInfo, info))

    async def open_session(self, language: str, cwd: AnyPath | None, env: Mapping[str, str]) -> HttpSession:
        body = {"language": language, "cwd": optional_path_text(cwd), "env": dict(env)}
        created = await self._endpoint.request("POST", "sessions", json=body)
        return HttpSession(self._endpoint, created, self._make_sandbox)

    async def expose(self, port: int, host_port: int) -> HttpPort:
        await self._endpoint.open()
        path = f"{self._endpoint.path}/ports/{port}/ws"
        exposed = HttpPort(self._endpoint.connection, path, self._ports.discard)
        await exposed.listen(host_port)
        self._ports.add(exposed)
        return exposed

    async def close_ports(self) -> None:
        for port in tuple(self._ports):
            await port.aclose()
