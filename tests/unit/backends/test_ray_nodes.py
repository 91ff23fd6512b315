"""Joining Ray: what a refusal says. Without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.backends.ray import ray_nodes
from warmcell.backends.ray.ray_nodes import RayNodes
from warmcell.core.errors import BackendUnavailable


def fail_to_connect(**_: Any) -> None:
    raise ConnectionError("Failed to connect to Ray cluster")


@pytest.mark.parametrize(
    ("address", "mode", "names_the_token"),
    [("10.0.0.1:6379", None, True), ("10.0.0.1:6379", "token", False), ("auto", None, False)],
)
def test_a_cluster_at_an_address_may_want_a_token(
    address: str, mode: str | None, names_the_token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    ray = SimpleNamespace(is_initialized=lambda: False, init=fail_to_connect)
    monkeypatch.setattr(ray_nodes, "import_ray", lambda: ray)
    with pytest.raises(BackendUnavailable, match="cannot join the Ray cluster") as caught:
        RayNodes(address).join()
    assert ("RAY_AUTH_MODE=token" in caught.value.hint) is names_the_token
