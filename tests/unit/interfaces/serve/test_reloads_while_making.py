"""A reload of the policy while a backend or a fork is being made under the former one; a reload of quotas."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from tests.helpers import PATIENCE

from warmcell.core.errors import PolicyViolation
from warmcell.images.model import Image, ImageConfig
from warmcell.interfaces.serve import run_places
from warmcell.interfaces.serve.requests import HAS_RIGHT, REVOCABLE, while_connected
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.run_places import GpuAccess, ImageAccess, ImageChoice
from warmcell.interfaces.serve.sandbox_registry import SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import add_token
from warmcell.languages.config import ProcessConfig
from warmcell.policy.model import SandboxPolicy

CHOICE = ImageChoice(Image("image:1", "sha256:" + "0" * 64, 0, None, ImageConfig(cmd=("true",))))


async def test_no_later_run_in_an_image_has_the_former_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend of the former policy was kept, and every later run in the image had that policy."""
    is_making, may_end = threading.Event(), threading.Event()

    class Backend:
        def __init__(self, config: object, *, policy: SandboxPolicy, **_: object) -> None:
            self.policy = policy
            is_making.set()
            may_end.wait(PATIENCE)

    monkeypatch.setattr(run_places, "ProcessBackend", Backend)
    images = ImageAccess(ProcessConfig(), str(tmp_path))
    asked = [asyncio.ensure_future(images.backend(SandboxPolicy(allow_network=True), None, CHOICE)) for _ in range(2)]
    await asyncio.to_thread(is_making.wait, PATIENCE)
    assert images.take_backends() == []
    may_end.set()
    results: list[Any] = await asyncio.gather(*asked)
    for made, ending in results:
        assert made.policy.allow_network and ending == [made]
    later: Any
    later, ending = await images.backend(SandboxPolicy(), None, CHOICE)
    assert not later.policy.allow_network and ending == []
    assert await images.backend(SandboxPolicy(), None, CHOICE) == (later, [])


async def test_a_run_that_waited_has_the_gpus_of_the_present_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were compared with the policy of its request only: GPUs that it no longer had were in the cage."""
    backends = SimpleNamespace(with_sandbox=lambda config, *, policy: policy)
    monkeypatch.setattr(run_places, "ProcessBackend", backends)
    gpus, images = GpuAccess(ProcessConfig()), ImageAccess(ProcessConfig(), str(tmp_path))
    for present in (SandboxPolicy(), SandboxPolicy(gpus=(1,))):
        with pytest.raises(PolicyViolation):
            gpus.backend(present, (0,))
        with pytest.raises(PolicyViolation):
            await images.backend(present, (0,), CHOICE)
    narrowed: Any = gpus.backend(SandboxPolicy(gpus=(1,)), "all")[0]
    assert narrowed.gpus == (1,)


async def test_gpus_are_compared_with_the_policy_when_the_image_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(Settings())
    service.policy = SandboxPolicy(gpus="all")

    async def find_and_reload(*_: object) -> None:
        service.policy = None

    monkeypatch.setattr(service.images, "find", find_and_reload)
    try:
        with pytest.raises(PolicyViolation):
            await service.find_place(LOCAL_TENANT, [0], "image:1", None)
    finally:
        await service.aclose()


async def test_a_fork_that_a_reload_overtakes_counts_as_one_of_the_former_policy() -> None:
    """It has its parent's policy: its own forks have to be refused."""
    registry = SandboxRegistry()

    async def destroy() -> None:
        pass

    async def fork() -> Any:
        registry.policy_version += 1
        return SimpleNamespace(destroy=destroy)

    entry = await registry.add_async(fork, LOCAL_TENANT, 60.0, {})
    assert (entry.policy_version, registry.policy_version) == (0, 1)
    await registry.remove(entry)


async def test_a_reload_changes_the_quotas_of_sandboxes_that_exist(tmp_path: Path) -> None:
    """Requests with the secrets of an E2B sandbox had the quotas of its creation as long as it lived."""
    file = tmp_path / "tokens.json"
    tenant = add_token(str(file), "one")[1]
    service = Service(Settings(tokens=str(file)))

    async def destroy() -> None:
        pass

    made: Any = SimpleNamespace(destroy=destroy)
    try:
        entry = service.sandboxes.add(lambda: made, tenant, 60.0, {})
        document = json.loads(file.read_text())
        document["tokens"][0]["runs"] = 3
        file.write_text(json.dumps(document))
        service.reload()
        assert (entry.tenant.id, entry.tenant.runs) == (tenant.id, 3)
    finally:
        await service.aclose()


async def test_a_run_begins_only_if_its_token_still_exists() -> None:
    """A token that was revoked while the run's image was looked up: the run went on to its timeout."""

    async def receive() -> Any:
        await asyncio.Event().wait()

    revocable: set[Any] = set()
    scope: dict[str, Any] = {"type": "http", HAS_RIGHT: lambda: False, REVOCABLE: revocable}
    with pytest.raises(HttpError, match="revoked"):
        await while_connected(Request(scope, receive), asyncio.sleep(5))
    assert not revocable
