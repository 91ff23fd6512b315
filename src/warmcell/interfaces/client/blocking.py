"""Client: `AsyncClient` for blocking code. Nothing is written twice: each method is lifted through the portal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warmcell.backends.many import in_step
from warmcell.core.output_events import StreamEvent
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult
from warmcell.interfaces.client.asynchronous import AsyncClient as AsyncClient
from warmcell.interfaces.client.asynchronous import AsyncRemoteSandbox
from warmcell.lifetime.portal import portal


class Client:
    """`with Client("http://127.0.0.1:8000") as client: client.execute(request)`. From any thread."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._async = AsyncClient(url, token=token)

    def execute(self, request: ExecRequest) -> ExecResult:
        """Runs it there; raises what a backend here would raise."""
        return portal.call(self._async.execute, request)

    def stream(self, request: ExecRequest) -> Iterator[StreamEvent]:
        """`OutputEvent`s as they come, last a `ResultEvent`. Leaving it ends the run."""
        return in_step(self._async.stream(request))

    def capabilities(self) -> BackendCapabilities:
        """What that host can run, and what really holds there."""
        return self._async.capabilities()

    def sandbox(
        self, *, env: Mapping[str, str] | None = None, timeout: float = 30.0, lifetime: float = 3600.0
    ) -> RemoteSandbox:
        """A new sandbox over there, which goes away after `lifetime` seconds at the latest."""
        return RemoteSandbox(portal.call(self._async.sandbox, env=env, timeout=timeout, lifetime=lifetime))

    def close(self) -> None:
        portal.call(self._async.aclose)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteSandbox:
    """What `Sandbox` does with code and files, over there."""

    def __init__(self, sandbox: AsyncRemoteSandbox) -> None:
        self._async = sandbox
        self.id = sandbox.id

    def exec(self, command: str, args: Sequence[str] = (), **options: Any) -> ExecResult:
        """Runs one command, without a shell. Options: `cwd`, `stdin`, `timeout`."""
        return portal.call(self._async.exec, command, args, **options)

    def sh(self, script: str, **options: Any) -> ExecResult:
        """Runs a shell script in the work directory."""
        return portal.call(self._async.sh, script, **options)

    def run(self, code: str, language: str = "python", **options: Any) -> ExecResult:
        """Runs source text in the work directory."""
        return portal.call(self._async.run, code, language, **options)

    def read_file(self, path: str) -> bytes:
        return portal.call(self._async.read_file, path)

    def read_text(self, path: str) -> str:
        return portal.call(self._async.read_text, path)

    def write_file(self, path: str, data: str | bytes) -> None:
        portal.call(self._async.write_file, path, data)

    def remove(self, path: str) -> None:
        portal.call(self._async.remove, path)

    def list_dir(self, path: str = ".") -> list[Any]:
        return portal.call(self._async.list_dir, path)

    def destroy(self) -> None:
        """Ends what runs and removes its files. May be called twice."""
        portal.call(self._async.destroy)

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()
