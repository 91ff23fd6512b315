"""`GET /v1/capabilities` starts no toolchain for each request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.v1 import runs
from warmcell.interfaces.serve.v1.runs import Capabilities
from warmcell.languages import registry


async def test_versions_are_queried_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    queried: list[str] = []
    monkeypatch.setattr(registry, "language_version", lambda name, config: queried.append(name) or "1.0")
    service, handler = Service(Settings()), Capabilities()
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(service=service)))
    try:
        bodies = {bytes((await handler(request, LOCAL_TENANT)).body) for _ in range(3)}
        assert len(bodies) == 1 and b'"python":"1.0"' in bodies.pop()
        assert queried.count("python") == 1
        monkeypatch.setattr(runs, "CACHE_SECONDS", -1.0)
        await handler(request, LOCAL_TENANT)
        assert queried.count("python") == 2
    finally:
        await service.aclose()
