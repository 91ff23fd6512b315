"""AsyncRemoteSandbox: what `AsyncSandbox` does, in a sandbox of a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from warmcell.backends.output_callbacks import OnText, Texts
from warmcell.core.errors import NetworkingDisabled, SandboxDestroyed, SessionNotFound
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import BackendCapabilities, EffectiveLimits, ExecResult, check_timeout
from warmcell.interfaces.client.files import maybe_text, path_text
from warmcell.interfaces.client.ports import AsyncRemotePort
from warmcell.interfaces.client.processes import AsyncRemoteProcess
from warmcell.interfaces.client.remote_files import RemoteFiles
from warmcell.interfaces.client.sessions import AsyncRemoteSession
from warmcell.interfaces.client.watches import AsyncRemoteWatch
from warmcell.interfaces.client.wire import content, outcome, record
from warmcell.sandbox.opening import Opening
from warmcell.sandbox.processes import ProcessInfo, PtySize
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.interfaces.client.connection import Connection
    from warmcell.sandbox.tools.toolset import Toolset


class AsyncRemoteSandbox(RemoteFiles):
    """The same arguments, results and errors. What it runs and keeps is over there; paths of the host are here."""

    def __init__(
        self,
        connection: Connection,
        capabilities: Callable[[], BackendCapabilities],
        made: Mapping[str, Any],
    ) -> None:
        self.id: str = made["id"]
        self.limits = cast("EffectiveLimits", record(EffectiveLimits, made["limits"]))
        self.timeout: float = made["timeout"]
        self._connection, self.capabilities = connection, capabilities
        self._at = f"/v1/sandboxes/{self.id}"
        self._is_destroyed = False
        self._ports: set[AsyncRemotePort] = set()

    async def start(self) -> None:
        """It has begun when it was made."""

    # ---- runs ----

    async def exec(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs one command, without a shell. `CommandNotFound` when the sandbox has none of that name."""
        body = {"command": command, "args": list(args), "cwd": maybe_text(cwd)}
        return await self._run("exec", body, stdin, timeout, on_stdout, on_stderr)

    async def sh(
        self,
        script: str,
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs a shell script in the work directory. Nothing but files is kept from one call to the next."""
        return await self._run("sh", {"script": script, "cwd": maybe_text(cwd)}, stdin, timeout, on_stdout, on_stderr)

    async def run(
        self,
        code: str,
        language: str = "python",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs source text in the work directory."""
        return await self._run("run", {"code": code, "language": language}, stdin, timeout, on_stdout, on_stderr)

    async def exec_python(self, code: str, /, **options: Any) -> ExecResult:
        """Runs Python code in the work directory."""
        return await self.run(code, "python", **options)

    async def exec_js(self, code: str, /, **options: Any) -> ExecResult:
        """Runs JavaScript code in the work directory."""
        return await self.run(code, "javascript", **options)

    async def _run(
        self,
        how: str,
        body: dict[str, Any],
        stdin: str | bytes | None,
        timeout: float | None,
        on_stdout: OnText | None,
        on_stderr: OnText | None,
    ) -> ExecResult:
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        body |= {"stdin": None if stdin is None else content(stdin), "timeout": timeout}
        if on_stdout is None and on_stderr is None:
            return outcome(await self.ask("POST", how, json=body, seconds=seconds))
        self._check_open()
        texts, result = Texts(on_stdout, on_stderr), ExecResult()
        async with self._connection.events("POST", f"{self._at}/{how}", json=body) as events:
            async for name, data, _ in events:
                if name == "result":
                    result = outcome(data)
                else:
                    await texts.hear(OutputEvent(name, data["text"].encode()))  # type: ignore[arg-type]
        return result

    async def install(self, *packages: str, manager: str = "pip") -> None:
        """Packages for what runs from now on, from where pip or npm (`manager`) gets them on that host."""
        await self.ask("POST", "install", json={"packages": list(packages), "manager": manager}, seconds=600)

    async def available_tools(self) -> list[str]:
        """The commands that `exec` and `sh` find by their names, sorted."""
        found: list[str] = await self.ask("GET", "tools")
        return found

    def tools(
        self,
        *,
        max_text: int = 30_000,
        languages: Sequence[str] | None = None,
        stateful: bool = True,
        max_timeout: int = 300,
    ) -> Toolset:
        """Tools for a model, as `AsyncSandbox.tools`."""
        from warmcell.backends.process.session_worker import LANGUAGES
        from warmcell.sandbox.tools.toolset import ToolCalls, make_toolset

        remembering = tuple(LANGUAGES) if stateful else ()
        calls = ToolCalls(
            cast("Any", self), self.timeout, max_text, languages, remembering, bool(remembering), max_timeout
        )
        return make_toolset(calls.definitions, calls.answer, is_async=True)

    async def fetch(self, request: object) -> Any:
        """Sandboxes of a server have the network that its policy gives their guests, and no other."""
        raise NetworkingDisabled

    # ---- forks and events ----

    async def fork(self, snapshot: str | None = None) -> AsyncRemoteSandbox:
        """A new sandbox with the same rules and a copy of the work directory, or of a snapshot of it."""
        asked = {"snapshot": None if snapshot is None else str(snapshot)}
        return self.around(await self.ask("POST", "fork", json=asked, seconds=120))

    def watch(self, path: AnyPath = ".", *, recursive: bool = False) -> AsyncRemoteWatch:
        """What happens to files, from its first step on, or from entering it with `async with`."""
        self._check_open()
        params = {"path": path_text(path), "recursive": str(recursive).lower()}
        return AsyncRemoteWatch(self._connection, f"{self._at}/watch", params)

    # ---- what lives ----

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        pty: PtySize | None = None,
        stdin: bool = True,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> AsyncRemoteProcess:
        """As `AsyncSandbox.spawn`."""
        texts = None if on_stdout is None and on_stderr is None else Texts(on_stdout, on_stderr)
        asked: dict[str, Any] = {
            "command": command if isinstance(command, str) else list(command),
            "cwd": maybe_text(cwd),
        }
        asked |= {"env": dict(env or {}), "stdin": stdin, "timeout": timeout}
        asked |= {"pty": None if pty is None else dataclasses.asdict(pty)}
        return self._process(await self.ask("POST", "processes", json=asked), texts)

    async def processes(self) -> list[ProcessInfo]:
        """What `spawn` started and still runs, and the last hundred that have ended; the oldest first."""
        return [record(ProcessInfo, info) for info in await self.ask("GET", "processes")]

    async def attach(
        self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> AsyncRemoteProcess:
        """A process by its pid."""
        texts = None if on_stdout is None and on_stderr is None else Texts(on_stdout, on_stderr)
        return self._process(await self.ask("GET", f"processes/{int(pid)}"), texts)

    def _process(self, info: Mapping[str, Any], texts: Texts | None) -> AsyncRemoteProcess:
        made = AsyncRemoteProcess(self, record(ProcessInfo, info))
        if texts is not None:
            made.hear(texts)
        return made

    def session(
        self, language: str = "python", *, cwd: AnyPath | None = None, env: Mapping[str, str] | None = None
    ) -> Opening:
        """An interpreter that remembers; `await` it, or use it with `async with`."""
        asked = {"language": language, "cwd": maybe_text(cwd), "env": dict(env or {})}

        async def opened() -> Any:
            return AsyncRemoteSession(self, await self.ask("POST", "sessions", json=asked), self.timeout)

        return Opening(opened)

    async def expose(self, port: int, host_port: int = 0) -> AsyncRemotePort:
        """Carries connections to a port of this host's loopback to that port of the sandbox."""
        self._check_open()
        made = AsyncRemotePort(self._connection, f"{self._at}/ports/{int(port)}/ws", port, self._ports.discard)
        await made.begin(host_port)
        self._ports.add(made)
        return made

    async def destroy(self) -> None:
        """Ends what runs and removes its files. May be called twice."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        for port in tuple(self._ports):
            await port.aclose()
        try:
            await self._connection.ask("DELETE", self._at)
        except (SandboxDestroyed, SessionNotFound):
            return  # its time was over

    async def __aenter__(self) -> AsyncRemoteSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id[:8]} {'destroyed' if self._is_destroyed else self._connection.url}>"

    # ---- for what belongs to it ----

    def around(self, made: Mapping[str, Any]) -> AsyncRemoteSandbox:
        """Another sandbox of the same server."""
        return AsyncRemoteSandbox(self._connection, self.capabilities, made)

    async def ask(self, method: str, where: str, **more: Any) -> Any:
        self._check_open()
        return await self._connection.ask(method, f"{self._at}/{where}", **more)

    def events(self, method: str, where: str, **more: Any) -> Any:
        self._check_open()
        return self._connection.events(method, f"{self._at}/{where}", **more)

    def _check_open(self) -> None:
        self._connection.check_open()
        if self._is_destroyed:
            raise SandboxDestroyed
