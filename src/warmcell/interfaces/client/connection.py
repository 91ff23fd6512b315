"""One server: requests, events as they come, and whatever goes wrong as the errors that we have for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.interfaces.client.wire import error_from

#: What a server may keep a run waiting before it begins, and take to say how it ended.
PATIENCE = 120.0
#: A server says something at least every 15 s.
SILENCE = 60.0


class Connection:
    """For one event loop."""

    def __init__(self, url: str, token: str | None) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidRequest("must be an address such as http://127.0.0.1:8000", field="url")
        self.url = url.rstrip("/")
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, *, seconds: float = 0, **more: Any) -> Any:
        """The answer, as JSON where it is."""
        answer = await self.send(method, path, timeout=seconds + PATIENCE, **more)
        if answer.status_code >= 400:
            raise self.refusal(answer)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json else answer.content

    async def send(self, method: str, path: str, **more: Any) -> Any:
        try:
            return await self.http.request(method, path, **more)
        except httpx_module().HTTPError as error:
            raise self.unreachable(error) from error

    @asynccontextmanager
    async def events(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> AsyncIterator[AsyncIterator[tuple[str, Any, str]]]:
        """Name, data and id of each event. `error`, which is the last, is raised."""
        httpx = httpx_module()
        asked = {"Accept": "text/event-stream"} | dict(headers or {})
        timeout = httpx.Timeout(PATIENCE, read=SILENCE)
        try:
            async with self.http.stream(method, path, headers=asked, timeout=timeout, **more) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise self.refusal(answer)
                yield _events(answer.aiter_lines())
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error

    @cached_property
    def http(self) -> Any:
        httpx = httpx_module()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        return httpx.AsyncClient(
            base_url=self.url, headers=self.headers, trust_env=False, timeout=PATIENCE, limits=limits
        )

    async def aclose(self) -> None:
        if "http" in self.__dict__:
            await self.http.aclose()

    def check_open(self) -> None:
        if self.http.is_closed:
            raise BackendUnavailable("the client was closed", hint="create a new one")

    def refusal(self, answer: Any) -> Exception:
        try:
            return error_from(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            return BackendUnavailable(f"{self.url} answered {answer.status_code}, and is no warmcell server")

    def unreachable(self, error: Exception) -> BackendUnavailable:
        reason = str(error) or type(error).__name__
        return BackendUnavailable(f"{self.url} could not be reached: {reason}", hint="is `warmcell serve` running?")


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any, str]]:
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


def httpx_module() -> Any:
    try:
        import httpx
    except ImportError:
        raise BackendUnavailable(
            "the client needs the package 'httpx', which is not installed", hint="pip install 'warmcell[client]'"
        ) from None
    return httpx
