"""ClusterEndpoint: places a sandbox on a node at its first request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.core.errors import BackendBusy
from warmcell.interfaces.client.cluster_sandbox import ClusterEndpoint


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
