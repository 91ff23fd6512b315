"""AsyncClient and Client: a Warmcell server as a backend, and sandboxes on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from warmcell.backends.many import in_step
from warmcell.core.errors import InvalidRequest
from warmcell.core.light import Closing
from warmcell.core.output_events import StreamEvent
from warmcell.core.request_checks import check_kind
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult, Limits, check_env
from warmcell.interfaces.client.connection import Connection, until_result
from warmcell.interfaces.client.http_sandbox import HttpSandbox
from warmcell.interfaces.client.wire import outcome, plain_image, plain_limits, plain_request, record, stream_event
from warmcell.lifetime.portal import portal
from warmcell.policy.gpu import check_gpus
from warmcell.sandbox.async_base import AsyncSandboxBase
from warmcell.sandbox.blocking_base import BlockingBase
from warmcell.sandbox.signatures import arguments_of, blocking, same_arguments


class AsyncRemoteSandbox(AsyncSandboxBase):
    """`AsyncSandbox` on a server. Host paths in its methods are paths on this machine."""


class AsyncClient:
    """`AsyncClient("http://127.0.0.1:8000", token=...)`: a `SandboxBackend`, for one event loop; close it when done."""

    name = "remote"

    def __init__(
        self, url: str, token: str | None = None, *, image: str | None = None, user: str | None = None
    ) -> None:
        """`image` is the root of all its guests: a name in the server's image store. `user`: a user of that image."""
        self._connection = Connection(url, token)
        self._image = plain_image(image, user)

    async def execute(self, request: ExecRequest) -> ExecResult:
        """Run the request on the server. Raises what a local backend would raise."""
        self._connection.check_open()
        return outcome(
            await self._connection.request("POST", "/v1/run", json=self._body(request), seconds=request.timeout)
        )

    async def stream(self, request: ExecRequest) -> AsyncIterator[StreamEvent]:
        """`OutputEvent`s as they arrive, last a `ResultEvent`. Leaving the iteration ends the run."""
        self._connection.check_open()
        async with self._connection.events("POST", "/v1/run", json=self._body(request)) as events:
            async for name, data, _ in until_result(events):
                yield stream_event(name, data)

    def _body(self, request: ExecRequest) -> dict[str, Any]:
        hint = "ExecRequest(language, code, timeout)"
        return plain_request(check_kind("request", request, ExecRequest, hint)) | self._image

    def capabilities(self) -> BackendCapabilities:
        """What the server can run, and what is enforced there. Blocks for one request, then cached."""
        return self._capabilities

    @cached_property
    def _capabilities(self) -> BackendCapabilities:
        plain = self._connection.get_blocking("/v1/capabilities")
        return BackendCapabilities(
            supported_languages=tuple(plain["languages"]),
            isolation_class=plain["isolation_class"],
            enforced_limits=record(EnforcedLimits, plain["enforced_limits"]),
            network=tuple(plain["network"]),
            versions=plain["versions"],
        )

    async def sandbox(
        self,
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        live: bool = False,
        forkable: bool = False,
        gpus: str | Sequence[int] | None = None,
        image: str | None = None,
        user: str | None = None,
        lifetime: float = 3600.0,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncRemoteSandbox:
        """Make a sandbox on the server, which destroys it after `lifetime` seconds at the latest.

        `timeout` is for runs that set none: by default 30 s, or the server's maximum if that is less. `image`: by
        default the client's.
        """
        self._connection.check_open()
        if not isinstance(metadata, Mapping | None):
            raise InvalidRequest(f"must be a mapping of text to text, not {type(metadata).__name__}", field="metadata")
        if limits is not None:
            check_kind("limits", limits, Limits)
        variables, devices = check_env({} if env is None else env), check_gpus(gpus)
        body: dict[str, Any] = {"env": dict(variables), "timeout": timeout, "live": live, "forkable": forkable}
        body |= {} if devices is None else {"gpus": devices}
        body |= self._image if image is None else plain_image(image, user)
        body |= {"limits": plain_limits(limits), "lifetime": lifetime, "metadata": dict(metadata or {})}
        created = await self._connection.request("POST", "/v1/sandboxes", json=body)
        return AsyncRemoteSandbox._with_driver(HttpSandbox(self._connection, self.capabilities, created))

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class RemoteSandbox(BlockingBase):
    """`Sandbox` on a server. Safe to use from several threads."""


class Client(Closing):
    """`with Client("http://127.0.0.1:8000", token) as client: client.execute(request)`. Use it from any thread."""

    @arguments_of(AsyncClient)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._async = AsyncClient(*args, **kwargs)

    execute = blocking(AsyncClient.execute)
    close = blocking(AsyncClient.aclose)

    def stream(self, request: ExecRequest) -> Iterator[StreamEvent]:
        """`OutputEvent`s as they arrive, last a `ResultEvent`. Leaving the iteration ends the run."""
        return in_step(self._async.stream(request))

    def capabilities(self) -> BackendCapabilities:
        """What the server can run, and what is enforced there."""
        return self._async.capabilities()

    @same_arguments(AsyncClient.sandbox)
    def sandbox(self, **options: Any) -> RemoteSandbox:
        return RemoteSandbox._wrap(portal.make(AsyncRemoteSandbox.destroy, self._async.sandbox, **options))
