"""Connection: requests to one server and event streams from it; failures become typed errors. SandboxEndpoint: the
routes of one sandbox there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import cached_property
from typing import Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxDestroyed, SandboxError, SessionNotFound
from warmcell.interfaces.client.wire import error_from
from warmcell.lifetime.cancellable import SharedClose

#: Seconds beyond a run's own timeout: for the server's queue and for its answer.
EXTRA_SECONDS = 120.0
#: Servers send a keep-alive at least every 15 s.
MAX_SILENCE = 60.0
#: How long the server may take to end what a client closes.
CLOSE_SECONDS = 120.0
#: Its name, data and id.
Event = tuple[str, Any, str]


class ResponseEnded(BackendUnavailable):
    """The response ended as if it were complete, without a result."""


class Connection:
    """A connection to one server. Belongs to one event loop."""

    def __init__(self, url: str, token: str | None) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidRequest("must be a URL such as http://127.0.0.1:8000", field="url")
        self.url = url.rstrip("/")
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._is_closed = False
        self._closing = SharedClose(self._close)

    async def request(self, method: str, path: str, *, seconds: float = 0, **more: Any) -> Any:
        """Send a request; return the body of the answer, parsed if it is JSON, else bytes."""
        self.check_open()
        request = self._build(method, path, timeout=seconds + EXTRA_SECONDS, **more)
        try:
            return self._read_body(await self.http.send(request))
        except import_httpx().HTTPError as error:
            raise self._unreachable(error) from error

    def _build(self, method: str, path: str, **more: Any) -> Any:
        """Make a request. What a caller passed may be anything: `InvalidRequest` if it cannot be sent."""
        try:
            return self.http.build_request(method, path, **more)
        except (TypeError, ValueError, import_httpx().InvalidURL) as error:
            raise InvalidRequest(f"the arguments cannot be sent to the server: {error}") from None

    def get_blocking(self, path: str) -> Any:
        httpx = import_httpx()
        try:
            with httpx.Client(base_url=self.url, headers=self.headers, trust_env=False, timeout=EXTRA_SECONDS) as http:
                return self._read_body(http.get(path))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _read_body(self, answer: Any) -> Any:
        if answer.status_code >= 400:
            raise self._error_from_answer(answer)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json else answer.content

    @asynccontextmanager
    async def events(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Yield the name, data and id of each event. An `error` event, always the last, is raised."""
        httpx = import_httpx()
        sent_headers = {"Accept": "text/event-stream"} | dict(headers or {})
        timeout = httpx.Timeout(EXTRA_SECONDS, read=MAX_SILENCE)
        self.check_open()
        request = self._build(method, path, headers=sent_headers, timeout=timeout, **more)
        try:
            async with aclosing(await self.http.send(request, stream=True)) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise self._error_from_answer(answer)
                yield _events(answer.aiter_lines())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    @cached_property
    def http(self) -> Any:
        httpx = import_httpx()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        return httpx.AsyncClient(
            base_url=self.url, headers=self.headers, trust_env=False, timeout=EXTRA_SECONDS, limits=limits
        )

    def open_websocket(self, path: str, **options: Any) -> Any:
        """A context manager for a WebSocket to this path."""
        url = self.url.replace("http", "ws", 1) + path
        return import_websockets().connect(url, additional_headers=self.headers, **options)

    async def request_end(self, path: str) -> None:
        """Send a DELETE for what may be gone already. `BackendUnavailable` if the server does not answer in time."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.request("DELETE", path)
        except (SandboxDestroyed, SessionNotFound):
            return  # its lifetime was over
        except TimeoutError:
            raise BackendUnavailable(f"{self.url} did not answer within {CLOSE_SECONDS:g} s") from None

    async def aclose(self) -> None:
        self._is_closed = True
        await self._closing.run()

    async def _close(self) -> None:
        if "http" in self.__dict__:
            await self.http.aclose()

    def check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("the client was closed", hint="create a new one")

    def _error_from_answer(self, answer: Any) -> Exception:
        try:
            error = answer.json()["error"]
            if (error["code"], error["message"]) == ("http.404", "not found"):  # the path, not what it names
                hint = "the URL is that of the server alone, such as http://127.0.0.1:8000"
                return BackendUnavailable(f"{answer.request.url} is not a path of that server", hint=hint)
            return error_from(error)
        except (ValueError, KeyError, TypeError):
            return BackendUnavailable(f"{self.url} answered {answer.status_code} and is not a warmcell server")

    def _unreachable(self, error: Exception) -> SandboxError:
        reason = str(error) or type(error).__name__
        return BackendUnavailable(f"{self.url} could not be reached: {reason}", hint="is `warmcell serve` running?")


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    fields = {"id": ""}
    async for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            fields[name] = value
        elif not line and "data" in fields:
            data = json.loads(fields["data"])
            if fields["event"] == "error":
                raise error_from(data["error"])
            yield fields["event"], data, fields["id"]
            fields = {"id": fields["id"]}


async def until_result(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """The events up to `result`. A proxy may end a response early, as if it were complete."""
    async for event in events:
        yield event
        if event[0] == "result":
            return
    raise ResponseEnded("the response of the server ended without a result", hint="check the proxy before the server")


def import_httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise BackendUnavailable(
            "the client needs the package 'httpx', which is not installed", hint="pip install 'warmcell[client]'"
        ) from None
    return httpx


def import_websockets() -> Any:
    try:
        import websockets
        import websockets.exceptions
    except ImportError:
        raise BackendUnavailable(
            "ports need the package 'websockets', which is not installed", hint="pip install 'warmcell[client]'"
        ) from None
    return websockets


class SandboxEndpoint:
    """The routes of one sandbox, shared by all of its drivers."""

    #: How long the sandbox may live, in seconds, and its forks too; None: the server decides.
    lifetime: int | None = None

    def __init__(self, connection: Connection, sandbox_id: str) -> None:
        self.connection = connection
        self.path = f"/v1/sandboxes/{sandbox_id}"
        self.is_closed = False

    async def request(self, method: str, route: str, **more: Any) -> Any:
        self.check_open()
        return await self.connection.request(method, f"{self.path}/{route}", **more)

    def events(self, method: str, route: str, **more: Any) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        self.check_open()
        return self.connection.events(method, f"{self.path}/{route}", **more)

    @property
    def fork_options(self) -> dict[str, int]:
        return {} if self.lifetime is None else {"lifetime": self.lifetime}

    async def open(self) -> None:
        """Return when the sandbox exists."""
        self.check_open()

    def check_open(self) -> None:
        self.connection.check_open()
        if self.is_closed:
            raise SandboxDestroyed
