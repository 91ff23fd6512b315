"""HttpSandbox: the driver of a sandbox on a server, with its processes and sessions."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from warmcell.backends.many import in_step
from warmcell.core.errors import (
    BackendUnavailable,
    InvalidRequest,
    NetworkingDisabled,
    NodeLost,
    SandboxDestroyed,
    SandboxError,
    SessionBusy,
    SessionEnded,
)
from warmcell.core.output_events import OutputEvent, StreamEvent
from warmcell.core.types import BackendCapabilities, EffectiveLimits, ExecResult
from warmcell.core.types import Connection as EgressConnection
from warmcell.interfaces.client.connection import Connection, ResponseEnded, SandboxEndpoint, until_result
from warmcell.interfaces.client.http_files import HttpFiles, optional_path_text
from warmcell.interfaces.client.http_port import HttpPort
from warmcell.interfaces.client.wire import cell_outcome, content, outcome, record, stream_event
from warmcell.lifetime.cancellable import SharedClose
from warmcell.lifetime.portal import CallbackQueue, portal
from warmcell.sandbox.interface import NO_CALLBACKS, CellCallbacks, ProcessInfo, PtySize, RunOptions, SpawnOptions
from warmcell.sessions.cell_results import CellResult, DisplayData
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.net import FetchRequest, FetchResponse
    from warmcell.sandbox.interface import CheckpointDriver, SandboxDriver

#: How long one request waits on the server for the end of a process.
_WAIT_SECONDS = 30.0
#: `output` gives up after so many failed connections in a row.
_ATTEMPTS = 3
#: A response that lasted longer does not count as a failure: proxies limit how long one may last.
_STEADY_SECONDS = 10.0
Callback = Callable[[Any], object]
_RETRY_SECONDS = 0.05


class HttpProcess:
    def __init__(self, endpoint: SandboxEndpoint, info: ProcessInfo) -> None:
        self._endpoint, self.info = endpoint, info
        self._route = f"processes/{info.pid}"

    async def refresh(self) -> ProcessInfo:
        self.info = record(ProcessInfo, await self._endpoint.request("GET", self._route))
        return self.info

    def refresh_blocking(self) -> ProcessInfo:
        return portal.call(self.refresh)

    async def write(self, data: bytes) -> None:
        await self._endpoint.request("POST", f"{self._route}/stdin", content=data, seconds=3600)

    async def close_stdin(self) -> None:
        await self._endpoint.request("DELETE", f"{self._route}/stdin")

    async def resize(self, size: PtySize) -> None:
        await self._endpoint.request("POST", f"{self._route}/resize", json=dataclasses.asdict(size))

    async def signal(self, number: int) -> None:
        await self._endpoint.request("POST", f"{self._route}/signal", json={"signal": number})

    async def kill(self) -> None:
        await self._endpoint.request("DELETE", self._route)
        await self.refresh()

    async def kill_quietly(self) -> None:
        with suppress(SandboxError):  # the process or its sandbox has ended
            await self.kill()

    async def wait(self, callbacks: asyncio.Future[None] | None = None) -> ExecResult:
        if callbacks is not None:
            await asyncio.shield(callbacks)
        answer: dict[str, Any] = {"status": "running"}
        while answer["status"] == "running":
            params = {"timeout": _WAIT_SECONDS}
            answer = await self._endpoint.request("GET", f"{self._route}/wait", params=params, seconds=_WAIT_SECONDS)
        await self.refresh()
        return outcome(answer)

    async def output(self) -> AsyncGenerator[OutputEvent]:
        """Yield output. Reconnects when the connection is lost, and resumes after the last event."""
        position, failures = "0-0", 0
        while True:
            began = time.monotonic()
            try:
                async with self._endpoint.events("GET", f"{self._route}/output", params={"from": position}) as events:
                    async for name, data, event_id in until_result(events):
                        if name == "result":
                            return
                        if event_id != position:
                            position, failures = event_id, 0
                            yield OutputEvent(name, b64decode(data["base64"]))  # type: ignore[arg-type]
            except BackendUnavailable as error:
                is_served = isinstance(error, ResponseEnded) and time.monotonic() - began > _STEADY_SECONDS
                failures = 0 if is_served else failures + 1
                if failures >= _ATTEMPTS:
                    raise

    def output_blocking(self) -> Iterator[OutputEvent]:
        return in_step(self.output())


class HttpSession:
    def __init__(
        self,
        endpoint: SandboxEndpoint,
        created: Mapping[str, Any],
        make_sandbox: Callable[[Mapping[str, Any]], SandboxDriver],
    ) -> None:
        """`created` is the server's description of the session."""
        self.id: str = created["id"]
        self.language: str = created["language"]
        self.is_closed = False
        self._endpoint, self._make_sandbox = endpoint, make_sandbox
        self._route = f"sessions/{self.id}"
        self._closing = SharedClose(self._close)
        #: Cells whose responses are not complete, in order.
        self._cells: list[asyncio.Event] = []

    async def run(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        ended = asyncio.Event()
        self._cells.append(ended)
        try:
            return await self._run(code, timeout, callbacks)
        finally:
            self._cells.remove(ended)
            ended.set()

    async def _run(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        body = {"code": code, "timeout": timeout, "answers_input": callbacks.on_input is not None}
        if callbacks is NO_CALLBACKS:
            return cell_outcome(await self._request("POST", "/run", json=body, seconds=timeout))
        self._check_open()
        async with self._endpoint.events("POST", f"{self._route}/run", json=body) as events:
            async for name, data, _ in until_result(events):
                if name == "result":
                    result = cell_outcome(data)
                else:
                    await self._call_back(name, data, callbacks)
        return result

    async def _call_back(self, name: str, data: dict[str, Any], callbacks: CellCallbacks) -> None:
        callback: Callback | None = getattr(callbacks, f"on_{name}", None)
        if callback is None:
            return
        value = record(DisplayData, data) if name == "display" else data["prompt" if name == "input" else "text"]
        answer = callback(value)
        answer = await answer if inspect.isawaitable(answer) else answer
        if name == "input":
            if answer is not None and not isinstance(answer, str):
                raise InvalidRequest("must return text, or None", field="on_input")
            with suppress(SessionBusy):  # the cell was interrupted meanwhile: its result follows
                await self._request("POST", "/input", json={"text": answer})

    def run_blocking(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        if callbacks is NO_CALLBACKS:
            return portal.call(self.run, code, timeout, callbacks)
        queue = CallbackQueue()
        wrapped = {name: _wrap_callback(queue, getattr(callbacks, name)) for name in CellCallbacks.__slots__}
        return portal.call_with_callbacks(queue, self.run, code, timeout, CellCallbacks(**wrapped))

    async def variables(self, timeout: float) -> dict[str, str]:
        values: dict[str, str] = await self._request("GET", "/variables", seconds=timeout)
        return values

    def variables_blocking(self, timeout: float) -> dict[str, str]:
        return portal.call(self.variables, timeout)

    async def interrupt(self) -> bool:
        """Interrupt the first cell. Retries while the cell's request has not reached the server."""
        cell = self._cells[0] if self._cells else None
        while True:
            answer = await self._request("POST", "/interrupt")
            is_done: bool = answer is None or answer["interrupted"]  # None: a server that does not say
            if is_done or cell is None or cell.is_set():
                return is_done
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await cell.wait()

    async def restart(self) -> None:
        await self._request("POST", "/restart")

    async def fork(self, reseed: bool) -> tuple[SandboxDriver, HttpSession]:
        body: dict[str, Any] = {"reseed": reseed, **self._endpoint.fork_options}
        created = await self._request("POST", "/fork", json=body, seconds=300)
        sandbox = self._make_sandbox(created["sandbox"])
        endpoint = SandboxEndpoint(self._endpoint.connection, created["sandbox"]["id"])
        endpoint.lifetime = self._endpoint.lifetime
        return sandbox, HttpSession(endpoint, created["session"], self._make_sandbox)

    async def checkpoint(self) -> CheckpointDriver:
        raise InvalidRequest("sessions on a server have no checkpoints", hint="fork the session as often as needed")

    async def close(self) -> None:
        self.is_closed = True
        await self._closing.run()

    async def _close(self) -> None:
        with suppress(SandboxDestroyed, NodeLost):
            await self._endpoint.open()
            await self._endpoint.connection.request_end(f"{self._endpoint.path}/{self._route}")

    async def _request(self, method: str, route: str, **more: Any) -> Any:
        self._check_open()
        return await self._endpoint.request(method, self._route + route, **more)

    def _check_open(self) -> None:
        if self.is_closed:
            raise SessionEnded(SessionEnded.CLOSED)


def _wrap_callback(queue: CallbackQueue, callback: Callback | None) -> Callback | None:
    """Has the waiting thread call the callback; its answer comes back through a list, as a visit returns nothing."""
    if callback is None:
        return None
    answers: list[object] = []

    async def visit(value: Any) -> object:
        await queue.wrap(lambda: answers.append(callback(value)))()
        return answers.pop()

    return visit


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
        endpoint = SandboxEndpoint(connection, self.id)
        if "expires" in created:
            endpoint.lifetime = round(created["expires"] - created["created"])
        self._use(endpoint)

    def _use(self, endpoint: SandboxEndpoint) -> None:
        self._endpoint = endpoint
        self._closing = SharedClose(self._close)
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
        """Does nothing: the server has started it."""

    async def available_tools(self) -> list[str]:
        names: list[str] = await self._endpoint.request("GET", "tools")
        return names

    async def install(self, packages: Sequence[str], manager: str) -> None:
        body = {"packages": list(packages), "manager": manager}
        await self._endpoint.request("POST", "install", json=body, seconds=600)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        """Not available: guests of a server have the network of its policy."""
        raise NetworkingDisabled

    async def update_network(self, update: object) -> None:
        from warmcell.net.rules.network_update import read_update, to_plain

        await self._endpoint.request("PUT", "network", json=to_plain(read_update(update)))

    async def connections(self) -> list[EgressConnection]:
        return [record(EgressConnection, plain) for plain in await self._endpoint.request("GET", "connections")]

    async def fork(self, snapshot: str | None) -> HttpSandbox:
        body: dict[str, Any] = {"snapshot": None if snapshot is None else str(snapshot)}
        body |= self._endpoint.fork_options
        return self._sibling(await self._endpoint.request("POST", "fork", json=body, seconds=120))

    def _sibling(self, created: Mapping[str, Any]) -> HttpSandbox:
        return HttpSandbox(self._endpoint.connection, self.capabilities, created)

    async def close(self) -> None:
        """`BackendUnavailable` if the server does not confirm it; another call tries again."""
        await self._closing.run()

    async def _close(self) -> None:
        self._endpoint.is_closed = True
        await self.live.close_ports()
        await self._endpoint.connection.request_end(self._endpoint.path)


class HttpRuns:
    def __init__(self, endpoint: SandboxEndpoint) -> None:
        self._endpoint = endpoint

    async def command(self, argv: Sequence[str], cwd: AnyPath | None, options: RunOptions) -> ExecResult:
        body = {"command": argv[0], "args": list(argv[1:]), "cwd": optional_path_text(cwd)}
        return await self._run("exec", body, options)

    async def script(self, script: str, cwd: AnyPath | None, options: RunOptions) -> ExecResult:
        return await self._run("sh", {"script": script, "cwd": optional_path_text(cwd)}, options)

    async def code(self, code: str | bytes, language: str, options: RunOptions) -> ExecResult:
        return await self._run("run", {"code": content(code), "language": language}, options)

    async def _run(self, route: str, body: dict[str, Any], options: RunOptions) -> ExecResult:
        body |= {"stdin": None if options.stdin is None else content(options.stdin), "timeout": options.timeout}
        if options.follow is None:
            return outcome(await self._endpoint.request("POST", route, json=body, seconds=options.timeout))
        return await options.follow(self._events(route, body))

    async def _events(self, route: str, body: dict[str, Any]) -> AsyncIterator[StreamEvent]:
        async with self._endpoint.events("POST", route, json=body) as events:
            async for name, data, _ in until_result(events):
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
        return self._process(await self._endpoint.request("GET", f"processes/{pid}"))

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
        if self._endpoint.is_closed:  # meanwhile
            await exposed.aclose()
            raise SandboxDestroyed
        return exposed

    async def close_ports(self) -> None:
        for port in tuple(self._ports):
            await port.aclose()
