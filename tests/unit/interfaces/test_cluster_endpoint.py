"""ClusterEndpoint: places a sandbox on a node at its first request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.backends.ray.backend import RayBackend
from warmcell.core.errors import BackendBusy, BackendUnavailable, InvalidRequest, NodeLost, SandboxDestroyed
from warmcell.core.types import Limits
from warmcell.interfaces.client.cluster_sandbox import ClusterEndpoint, ClusterSandbox
from warmcell.languages.config import ProcessConfig
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.settings import SandboxSettings


class BusyOnce:
    """A backend whose nodes are busy at the first request."""

    retries = 0

    def __init__(self) -> None:
        self.requests = 0

    async def place_sandbox(self, has_gpus: bool) -> Any:
        self.requests += 1
        if self.requests == 1:
            raise BackendBusy(1)

        async def socket_path() -> str:
            return "/nowhere"

        async def call(method: str, settings: object) -> dict[str, str]:
            return {"id": "a"}

        return SimpleNamespace(call=call, socket_path=socket_path)

    def release_sandbox(self, link: object) -> None:
        raise AssertionError("no sandbox was lost")


async def test_a_sandbox_that_could_not_be_placed_is_placed_at_the_next_request() -> None:
    backend: Any = BusyOnce()
    settings: Any = SimpleNamespace(policy=None, image=None)
    endpoint = ClusterEndpoint(backend, settings)
    with pytest.raises(BackendBusy):
        await endpoint.open()
    await endpoint.open()
    assert endpoint.is_open and endpoint.path == "/v1/sandboxes/a"


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_sandbox_is_released_once_however_often_it_is_closed(is_answered: bool) -> None:
    released: list[object] = []
    backend: Any = SimpleNamespace(release_sandbox=released.append)
    settings: Any = None
    endpoint = ClusterEndpoint(backend, settings)
    sandbox = object.__new__(ClusterSandbox)
    sandbox._use(endpoint)

    async def request_end(path: str) -> None:
        await asyncio.sleep(0.01)
        if not is_answered:
            raise BackendUnavailable("no answer")

    async def release() -> None:
        released.append("connection")

    connection: Any = SimpleNamespace(request_end=request_end, release=release, link="link")
    place = asyncio.Event()

    async def open_late() -> None:
        await place.wait()
        endpoint.join(connection, {"id": "a"})

    endpoint._opening = asyncio.ensure_future(open_late())
    closes = [asyncio.ensure_future(sandbox.close()) for _ in range(3)]
    await asyncio.sleep(0)
    closes.pop().cancel()
    place.set()
    outcomes = await asyncio.gather(*closes, return_exceptions=True)
    assert all(isinstance(outcome, BackendUnavailable) != is_answered for outcome in outcomes)
    await sandbox.close()
    assert released == ["connection", "link"]


async def test_a_restore_places_nothing_once_the_sandbox_was_closed() -> None:
    placed: list[bool] = []

    async def place_sandbox(has_gpus: bool) -> Any:
        placed.append(has_gpus)
        raise BackendBusy(1)

    backend: Any = SimpleNamespace(retries=0, place_sandbox=place_sandbox, release_sandbox=lambda link: None)
    settings: Any = SimpleNamespace(policy=None, image=None)
    endpoint = ClusterEndpoint(backend, settings)
    sandbox = object.__new__(ClusterSandbox)
    sandbox._use(endpoint)
    go_on = asyncio.Event()
    lost: Any = SimpleNamespace(link=SimpleNamespace(lost=NodeLost("node", "it is gone")), release=go_on.wait)
    endpoint.join(lost, {"id": "a"})
    restoring = asyncio.ensure_future(endpoint.restore("snapshot"))
    await asyncio.sleep(0)  # it leaves the lost node
    await sandbox.close()
    go_on.set()
    with pytest.raises(SandboxDestroyed):
        await restoring
    assert not placed


async def test_close_ends_what_a_second_attempt_to_restore_has_placed() -> None:
    ended: list[str] = []

    async def call(*_: object) -> None: ...

    async def release() -> None: ...

    async def request_end(path: str) -> None:
        ended.append(path)

    backend: Any = SimpleNamespace(retries=1, release_sandbox=lambda link: None)
    settings: Any = None
    endpoint = ClusterEndpoint(backend, settings)
    sandbox = object.__new__(ClusterSandbox)
    sandbox._use(endpoint)
    connection: Any = SimpleNamespace(
        link=SimpleNamespace(lost=None, call=call), release=release, request_end=request_end
    )
    attempts = [asyncio.Event(), asyncio.Event()]
    waiting = list(attempts)

    async def open_at_the_second_attempt() -> None:
        attempt = waiting.pop(0)
        await attempt.wait()
        if attempt is attempts[0]:
            raise NodeLost("node", "it is gone")
        endpoint.join(connection, {"id": "b"})

    endpoint._open = open_at_the_second_attempt  # type: ignore[method-assign]
    restoring = asyncio.ensure_future(endpoint.restore("snapshot"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(sandbox.close())
    await asyncio.sleep(0.01)
    attempts[0].set()
    await asyncio.sleep(0.01)
    attempts[1].set()
    await asyncio.gather(restoring, closing, return_exceptions=True)
    assert ended == ["/v1/sandboxes/b"]


def make_backend(policy: SandboxPolicy) -> RayBackend:
    """A backend object that joins no cluster."""
    backend = object.__new__(RayBackend)
    backend.config, backend.policy = ProcessConfig(), policy
    return backend


async def test_limits_of_a_sandbox_leave_the_rest_of_its_backends_policy() -> None:
    """A policy without new processes and with less memory must not become the default one."""
    builder = SandboxPolicyBuilder().env("FROM", "policy")
    backend = make_backend(builder.limits(Limits(memory_mb=64)).build())
    asked = SandboxSettings(backend=backend, limits=Limits(memory_mb=128, disk_mb=7)).check()
    sandbox = ClusterSandbox(asked)
    assert sandbox._endpoint._settings.policy == builder.limits(Limits(memory_mb=64, disk_mb=7)).build()
    assert (sandbox.limits.memory_mb, sandbox.limits.disk_mb) == (64, 7)


@pytest.mark.parametrize(
    "options", [{"policy": SandboxPolicyBuilder().allow_domain("example.org").build()}, {"gpus": "all"}]
)
async def test_a_backend_object_gets_no_second_policy(options: dict[str, Any]) -> None:
    settings = SandboxSettings(backend=make_backend(SandboxPolicy()), **options).check()
    with pytest.raises(InvalidRequest, match="already has one") as caught:
        ClusterSandbox(settings)
    assert caught.value.field == "policy"
