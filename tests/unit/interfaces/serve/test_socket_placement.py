"""Which worker or node a WebSocket goes to."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from warmcell.interfaces.serve.front.placement import ANY_WORKER, Placement
from warmcell.interfaces.serve.settings import Settings

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
