"""GPUs behind `warmcell serve`: the token's scope and quota, under the policy's ceiling."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.made_up import driver

from warmcell.enforcers import gpus

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
from warmcell.backends.process.backend import ProcessBackend  # noqa: E402
from warmcell.interfaces.serve.app import make_app  # noqa: E402
from warmcell.interfaces.serve.responses import HttpError  # noqa: E402
from warmcell.interfaces.serve.run_places import MAX_BACKENDS, GpuAccess  # noqa: E402
from warmcell.interfaces.serve.saved_sandboxes import restore_sandboxes  # noqa: E402
from warmcell.interfaces.serve.saved_state import SANDBOXES  # noqa: E402
from warmcell.interfaces.serve.service import Service  # noqa: E402
from warmcell.interfaces.serve.settings import Settings  # noqa: E402
from warmcell.interfaces.serve.tokens import add_token  # noqa: E402
from warmcell.interfaces.serve.v1.sandboxes import restore_sandbox  # noqa: E402
from warmcell.languages.config import ProcessConfig  # noqa: E402
from warmcell.policy.model import SandboxPolicy  # noqa: E402

pytestmark = pytest.mark.needs("user namespaces")

LIST = "import os; print(*sorted(name for name in os.listdir('/dev') if 'nvidia' in name))"
RUN = {"language": "python", "code": LIST, "timeout": 30}


@asynccontextmanager
async def server(place: Path, policy: str, **quotas: Any) -> AsyncIterator[Any]:
    """A client with a token that has these scopes and quotas."""
    tokens = str(place / "tokens.json")
    token, _ = add_token(tokens, "tenant", **quotas)
    (place / "policy.toml").write_text(policy)
    service = Service(Settings(tokens=tokens, policy=str(place / "policy.toml")))
    transport = httpx.ASGITransport(make_app(service))
    try:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            yield client
    finally:
        await service.aclose()


@pytest.fixture(autouse=True)
def made_up_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "find_driver", driver)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


ALLOWED = 'allowProcessSpawn = true\ngpus = "all"\n'
SCOPES = ("run", "sandbox", "gpu")


async def test_a_request_has_the_gpus_that_it_names(tmp_path: Path) -> None:
    async with server(tmp_path, ALLOWED, scopes=SCOPES) as client:
        for asked, shown in (([1], "nvidia-uvm nvidia1 nvidiactl\n"), (None, "\n")):
            answer = await client.post("/v1/run", json={**RUN, "gpus": asked}, timeout=60)
            assert answer.json()["stdout"] == shown


async def test_a_token_without_the_scope(tmp_path: Path) -> None:
    async with server(tmp_path, ALLOWED) as client:
        for path, body in (("/v1/run", RUN), ("/v1/runs", RUN), ("/v1/sandboxes", {})):
            answer = await client.post(path, json={**body, "gpus": "all"})
            assert answer.status_code == 403
            assert "gpu" in answer.text


@pytest.mark.parametrize(("policy", "asked"), [("", "all"), ("gpus = [0]", [1])])
async def test_the_policy_is_the_ceiling(tmp_path: Path, policy: str, asked: object) -> None:
    async with server(tmp_path, f"allowProcessSpawn = true\n{policy}\n", scopes=SCOPES) as client:
        answer = await client.post("/v1/run", json={**RUN, "gpus": asked})
        assert answer.status_code in (400, 403, 422)
        assert "policy" in answer.text


async def test_sandboxes_count_against_the_quota_until_they_are_closed(tmp_path: Path) -> None:
    async with server(tmp_path, ALLOWED, scopes=SCOPES, gpu_runs=1) as client:
        first = await client.post("/v1/sandboxes", json={"gpus": [0]})
        assert first.status_code == 201
        identity = first.json()["id"]
        for path, body in (("/v1/run", RUN | {"gpus": [0]}), (f"/v1/sandboxes/{identity}/fork", {})):
            answer = await client.post(path, json=body)
            assert answer.status_code == 429, answer.text
        shown = await client.post(f"/v1/sandboxes/{identity}/run", json={"code": LIST}, timeout=60)
        assert shown.json()["stdout"] == "nvidia-uvm nvidia0 nvidiactl\n"
        plain = await client.post("/v1/sandboxes", json={})
        assert plain.status_code == 201
        await client.delete(f"/v1/sandboxes/{identity}")
        assert (await client.post("/v1/run", json={**RUN, "gpus": [0]}, timeout=60)).status_code == 200


async def test_requests_that_name_many_sets_of_devices_do_not_pile_up() -> None:
    access, policy = GpuAccess(ProcessConfig()), SandboxPolicy(gpus="all")
    displaced: list[ProcessBackend] = []
    first, _ = access.backend(policy, (0,))
    for number in range(1, 3 * MAX_BACKENDS):
        displaced += access.backend(policy, (number,))[1]
        assert access.backend(policy, (0,)) == (first, [])
    kept = access.take_backends()
    assert len(kept) == MAX_BACKENDS and first in kept and len(displaced) == 2 * MAX_BACKENDS
    for backend in [*kept, *displaced]:
        await backend.aclose()


async def test_sandboxes_of_the_previous_server_count_against_the_quota(tmp_path: Path) -> None:
    """After a restart the token could have as many more."""
    tokens, policy = str(tmp_path / "tokens.json"), tmp_path / "policy.toml"
    _, tenant = add_token(tokens, "tenant", scopes=SCOPES, gpu_runs=1)
    policy.write_text(ALLOWED)
    service = Service(Settings(tokens=tokens, policy=str(policy), state=str(tmp_path / "state")))
    try:
        assert service.saved is not None
        document = {"id": "a", "tenant": tenant.id, "home": service.saved.make_home().name, "metadata": {}}
        document |= {"created": time.time(), "expires": time.time() + 60, "protocol": "v1"}
        service.saved.put(SANDBOXES, "a", document | {"own": {"asked": {"gpus": [0]}}})
        await restore_sandboxes(service, {"v1": restore_sandbox})
        (entry,) = service.sandboxes.all()
        with pytest.raises(HttpError, match="already has 1"), service.gpus.count_use(tenant, True):
            pass
        await service.sandboxes.remove(entry)
        with service.gpus.count_use(tenant, True):
            pass
    finally:
        await service.aclose()
