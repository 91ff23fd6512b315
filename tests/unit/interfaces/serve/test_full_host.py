"""A host without free disk or descriptors: 503 and not ready, before anything fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.core.errors import BackendUnavailable
from warmcell.interfaces.serve import host_resources
from warmcell.interfaces.serve.host_resources import HostResources
from warmcell.interfaces.serve.responses import status_of
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import add_token
from warmcell.interfaces.serve.v1.runs import ready
from warmcell.languages.config import ProcessConfig
from warmcell.workspace.root import to_workspace_error


def statvfs(free_blocks: int, free_inodes: int = 1 << 20) -> Any:
    return lambda place: SimpleNamespace(f_bavail=free_blocks, f_frsize=4096, f_files=1 << 20, f_favail=free_inodes)


@pytest.mark.parametrize(
    ("found", "problem"),
    [(statvfs(0), "is full"), (statvfs(1 << 20, 3), "free inodes"), (statvfs(1 << 20), None)],
)
def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, found: Any, problem: str | None) -> None:
    monkeypatch.setattr(os, "statvfs", found)
    text = HostResources().problem()
    assert text is None if problem is None else problem in str(text)


def test_a_full_disk_of_the_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "statvfs", lambda place: statvfs(0 if place == str(tmp_path) else 1 << 20)(place))
    resources = HostResources(state=str(tmp_path))
    assert resources.problem() == "the host's disk for saved sandboxes is full"
    with resources.suspend():
        resources.check()  # saved sandboxes come back: removing some makes room
    with pytest.raises(BackendUnavailable):
        resources.check()


def test_few_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_resources, "_describe_full_disk", lambda place, purpose: None)
    used = len(os.listdir("/proc/self/fd"))
    for soft, is_short in ((used + 3, True), (used + 600, False)):
        monkeypatch.setattr(host_resources.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert (HostResources().problem() is not None) is is_short


async def test_new_work_is_refused_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(Settings())
    monkeypatch.setattr(os, "statvfs", statvfs(0))
    try:
        with pytest.raises(BackendUnavailable) as refused:
            service.make_sandbox(LOCAL_TENANT)
        assert status_of(refused.value) == 503
        with pytest.raises(BackendUnavailable):
            async with service.run_slot(LOCAL_TENANT):
                pass
    finally:
        await service.aclose()


async def test_readiness_and_the_log_name_the_problem(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(Settings())
    monkeypatch.setattr(host_resources, "CACHE_SECONDS", 0.0)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(service=service)))
    found = []
    try:
        for free in (0, 0, 1 << 20):
            monkeypatch.setattr(os, "statvfs", statvfs(free))
            found.append((await ready(request, LOCAL_TENANT)).status_code)
    finally:
        await service.aclose()
    assert found == [503, 503, 200]
    assert [record.getMessage() for record in caplog.records if record.name == "warmcell.serve"] == [
        "new work is refused: the host's disk for temporary files is full",
        "new work is accepted again",
    ]


def test_a_write_to_a_full_disk_is_not_the_callers_fault() -> None:
    error = to_workspace_error(OSError(errno.ENOSPC, "No space left on device"), ("a",))
    assert (error.fault, error.retryable, status_of(error)) == ("host", True, 503)


@pytest.mark.attack("S3-19")
async def test_one_tenant_never_holds_every_slot(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")
    tenant = add_token(file, "greedy", runs=1 << 16)[1]
    config = ProcessConfig()
    for settings, most in ((Settings(tokens=file), config.most_at_once - 1), (Settings(), config.most_at_once)):
        service = Service(settings, config)
        try:
            assert 1 <= service._share(tenant) <= most
            assert (service._share(tenant) < config.most_at_once) is (settings.tokens is not None)
        finally:
            await service.aclose()
