"""Client: `AsyncClient` for blocking code. Nothing is written twice: each method is lifted through the portal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from warmcell.backends.many import in_step
from warmcell.core.output_events import StreamEvent
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult
from warmcell.interfaces.client.asynchronous import AsyncClient as AsyncClient
from warmcell.interfaces.client.processes import AsyncRemoteProcess, RemoteProcess
from warmcell.interfaces.client.sandboxes import AsyncRemoteSandbox
from warmcell.interfaces.client.sessions import AsyncRemoteSession, RemoteSession
from warmcell.lifetime.portal import portal
from warmcell.sandbox.lifted import LiftedSandbox


class Client:
    """`with Client("http://127.0.0.1:8000", token) as client: client.execute(request)`. From any thread."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._async = AsyncClient(url, token)

    def execute(self, request: ExecRequest) -> ExecResult:
        """Runs it there; raises what a backend here would raise."""
        return portal.call(self._async.execute, request)

    def stream(self, request: ExecRequest) -> Iterator[StreamEvent]:
        """`OutputEvent`s as they come, last a `ResultEvent`. Leaving it ends the run."""
        return in_step(self._async.stream(request))

    def capabilities(self) -> BackendCapabilities:
        """What that host can run, and what really holds there."""
        return self._async.capabilities()

    def sandbox(self, **options: Any) -> RemoteSandbox:
        """A new `Sandbox`, over there: `env`, `timeout`, `limits`, `live`, `forkable`, `lifetime`, `metadata`."""
        return RemoteSandbox(portal.call(self._async.sandbox, **options))

    def close(self) -> None:
        portal.call(self._async.aclose)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteSandbox(LiftedSandbox):
    """What `Sandbox` does, over there. Safe to use from several threads."""

    def __init__(self, sandbox: AsyncRemoteSandbox) -> None:
        self._async = sandbox  # type: ignore[assignment]

    def _start(  # type: ignore[override]
        self, command: str | Sequence[str], is_heard: bool, **options: Any
    ) -> AsyncRemoteProcess:
        return portal.call(self._async.spawn, command, **options)  # type: ignore[return-value]

    def _process(self, started: AsyncRemoteProcess) -> RemoteProcess:  # type: ignore[override]
        return RemoteProcess(started)

    def _session(self, opened: AsyncRemoteSession) -> RemoteSession:  # type: ignore[override]
        return RemoteSession(opened, self)
