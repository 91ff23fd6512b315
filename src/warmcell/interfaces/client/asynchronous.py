"""AsyncClient: a backend that is somewhere else, and sandboxes there."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult, check_timeout
from warmcell.interfaces.client.wire import content, error_from, outcome, plain_request

#: What a server may keep a run waiting before it begins, and take to say how it ended.
PATIENCE = 120.0


class AsyncClient:
    """`AsyncClient("http://127.0.0.1:8000", token=...)`: a `SandboxBackend`, for one event loop; close it when done."""

    name = "remote"

    def __init__(self, url: str, *, token: str | None = None) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidRequest("must be an address such as http://127.0.0.1:8000", field="url")
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def execute(self, request: ExecRequest) -> ExecResult:
        """Runs it there; raises what a backend here would raise."""
        return outcome(await self.post("/v1/run", plain_request(request), request.timeout))

    async def stream(self, request: ExecRequest) -> AsyncIterator[StreamEvent]:
        """`OutputEvent`s as they come, last a `ResultEvent`. Leaving it ends the run."""
        sent = self._http.stream(
            "POST",
            "/v1/run",
            json=plain_request(request),
            headers={"Accept": "text/event-stream"},
            timeout=request.timeout + PATIENCE,
        )
        async with sent as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise self._refusal(answer)
            name: Literal["stdout", "stderr"] | str = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield _event(name, json.loads(line.removeprefix("data: ")))

    def capabilities(self) -> BackendCapabilities:
        """What that host can run, and what really holds there. Asked once, and waited for."""
        return self._capabilities

    @cached_property
    def _capabilities(self) -> BackendCapabilities:
        with _httpx().Client(base_url=self._url, headers=self._headers, trust_env=False, timeout=PATIENCE) as client:
            found = self._checked(client.get("/v1/capabilities"))
        return BackendCapabilities(
            supported_languages=tuple(found["languages"]),
            isolation_class=found["isolation_class"],
            enforced_limits=EnforcedLimits(**found["enforced_limits"]),
            network=tuple(found["network"]),
            versions=found["versions"],
        )

    async def sandbox(
        self, *, env: Mapping[str, str] | None = None, timeout: float = 30.0, lifetime: float = 3600.0
    ) -> AsyncRemoteSandbox:
        """A new sandbox over there, which goes away after `lifetime` seconds at the latest."""
        asked = {"env": dict(env or {}), "timeout": timeout, "lifetime": lifetime}
        return AsyncRemoteSandbox(self, (await self.post("/v1/sandboxes", asked, 0))["id"], timeout)

    async def aclose(self) -> None:
        if "_http" in self.__dict__:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @cached_property
    def _http(self) -> Any:
        return _httpx().AsyncClient(base_url=self._url, headers=self._headers, trust_env=False, timeout=PATIENCE)

    async def post(self, path: str, body: dict[str, Any], seconds: float) -> Any:
        return self._checked(await self.send("POST", path, json=body, timeout=seconds + PATIENCE))

    async def send(self, method: str, path: str, **more: Any) -> Any:
        if self._http.is_closed:
            raise BackendUnavailable("the client was closed", hint="create a new one")
        try:
            return await self._http.request(method, path, **more)
        except _httpx().HTTPError as error:
            raise self._unreachable(error) from error

    def checked(self, answer: Any) -> Any:
        if answer.status_code >= 400:
            raise self._refusal(answer)
        return answer

    def _checked(self, answer: Any) -> Any:
        return self.checked(answer).json()

    def _refusal(self, answer: Any) -> Exception:
        try:
            return error_from(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            return BackendUnavailable(f"{self._url} answered {answer.status_code}, and is no warmcell server")

    def _unreachable(self, error: Exception) -> BackendUnavailable:
        reason = str(error) or type(error).__name__
        return BackendUnavailable(f"{self._url} could not be reached: {reason}", hint="is `warmcell serve` running?")


class AsyncRemoteSandbox:
    """What `AsyncSandbox` does with code and files, over there."""

    def __init__(self, client: AsyncClient, identity: str, timeout: float) -> None:
        self.id = identity
        self._client, self._timeout = client, timeout
        self._at = f"/v1/sandboxes/{identity}"

    async def exec(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: str | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Runs one command, without a shell."""
        return await self._run("exec", {"command": command, "args": list(args), "cwd": cwd}, stdin, timeout)

    async def sh(
        self, script: str, *, cwd: str | None = None, stdin: str | bytes | None = None, timeout: float | None = None
    ) -> ExecResult:
        """Runs a shell script in the work directory."""
        return await self._run("sh", {"script": script, "cwd": cwd}, stdin, timeout)

    async def run(
        self, code: str, language: str = "python", *, stdin: str | bytes | None = None, timeout: float | None = None
    ) -> ExecResult:
        """Runs source text in the work directory."""
        return await self._run("run", {"code": code, "language": language}, stdin, timeout)

    async def read_file(self, path: str) -> bytes:
        data: bytes = (await self._file("GET", path)).content
        return data

    async def read_text(self, path: str) -> str:
        return (await self.read_file(path)).decode("utf-8", "replace")

    async def write_file(self, path: str, data: str | bytes) -> None:
        await self._file("PUT", path, content=data.encode() if isinstance(data, str) else data)

    async def remove(self, path: str) -> None:
        await self._file("DELETE", path)

    async def list_dir(self, path: str = ".") -> list[Any]:
        from warmcell.workspace.files import DirEntry

        found = self._client.checked(await self._client.send("GET", f"{self._at}/files", params={"path": path})).json()
        return [DirEntry(**entry) for entry in found]

    async def destroy(self) -> None:
        """Ends what runs and removes its files. May be called twice."""
        answer = await self._client.send("DELETE", self._at)
        if answer.status_code != 404:
            self._client.checked(answer)

    async def __aenter__(self) -> AsyncRemoteSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    async def _run(
        self, how: str, body: dict[str, Any], stdin: str | bytes | None, timeout: float | None
    ) -> ExecResult:
        seconds = self._timeout if timeout is None else check_timeout(timeout)
        more = {"stdin": None if stdin is None else content(stdin), "timeout": timeout}
        return outcome(await self._client.post(f"{self._at}/{how}", body | more, seconds))

    async def _file(self, method: str, path: str, **more: Any) -> Any:
        where = f"{self._at}/files/{quote(path, safe='/')}"
        return self._client.checked(await self._client.send(method, where, **more))


def _event(name: str, data: dict[str, Any]) -> StreamEvent:
    if name == "error":
        raise error_from(data["error"])
    if name == "result":
        return ResultEvent(outcome(data))
    return OutputEvent(name, b64decode(data["base64"]))  # type: ignore[arg-type]


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise BackendUnavailable(
            "the client needs the package 'httpx', which is not installed", hint="pip install 'warmcell[client]'"
        ) from None
    return httpx
