"""Which worker or node a WebSocket or a run goes to."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from warmcell.core.records import replace
from warmcell.interfaces.serve.front import worker as worker_module
from warmcell.interfaces.serve.front.client_sockets import CONNECTION
from warmcell.interfaces.serve.front.placement import ANY_WORKER, Placement
from warmcell.interfaces.serve.service import LOCAL_TENANT
from warmcell.interfaces.serve.settings import Settings
from warmcell.policy.model import SandboxPolicy

SANDBOX = "0" * 30 + "01"


@pytest.mark.parametrize(
    ("path", "worker"),
    [
        (f"/v1/sandboxes/{SANDBOX}/processes/3/ws", 1),
        (f"/box/v1/sandboxes/{SANDBOX}/processes/3/ws", 1),
        ("/box/v1/run/ws", ANY_WORKER),
        (f"/boxes/v1/sandboxes/{SANDBOX}/processes/3/ws", ANY_WORKER),
    ],
)
def test_a_socket_below_the_prefix_reaches_the_worker_of_its_sandbox(path: str, worker: int) -> None:
    """It went to any worker, and the others did not know the sandbox."""
    placement = Placement(Settings(workers=2, public_url="https://example.org/box"))
    request = HTTPConnection({"type": "websocket", "path": path, "headers": []})
    assert placement.choose_for_socket(request) == worker
    expected = path.removeprefix("/box") if path.startswith("/box/") else path
    assert placement.path_of_socket(request) == expected


@pytest.mark.parametrize(("scopes", "is_relayed"), [(("run",), False), (("run", "gpu"), True)])
async def test_runs_that_may_have_a_gpu_are_in_one_worker(
    monkeypatch: pytest.MonkeyPatch, scopes: tuple[str, ...], is_relayed: bool
) -> None:
    """Each worker counted its own: a token could use its number of GPUs once in every worker."""
    settings, places = Settings(workers=2, tokens="tokens.json"), list[str]()
    tenant = replace(LOCAL_TENANT, scopes=scopes)
    connection = SimpleNamespace(mark=lambda *_: None)
    scope: Any = {"type": "http", "method": "POST", "path": "/v1/run", "query_string": b"", "http_version": "1.1"}
    scope |= {"headers": [(b"x-api-key", b"token")], "state": {CONNECTION: connection}}
    home = Placement(settings).home(HTTPConnection(scope))

    async def relay(peer: Any, *_: Any) -> None:
        places.append(peer.name)

    async def answer(*_: Any) -> None:
        places.append("here")

    monkeypatch.setattr(worker_module, "relay", relay)
    policy, admission = SandboxPolicy(gpus="all"), SimpleNamespace(request=lambda *_, **__: nullcontext())
    service = SimpleNamespace(settings=settings, policy=policy, is_draining=False, tenant=lambda token: tenant)
    other: Any = (service, 1 - home, "/nowhere", admission)
    await worker_module.Dispatcher(*other).around(answer)(scope, None, None)
    assert places == [f"worker {home}" if is_relayed else "here"]
