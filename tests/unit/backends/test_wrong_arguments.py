"""Slips of a caller: objects of the wrong kind are refused by name, before anything is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from warmcell import (
    BackendUnavailable,
    EnforcerFailed,
    ExecRequest,
    InvalidRequest,
    ProcessBackend,
    Sandbox,
    SandboxPolicyBuilder,
)
from warmcell.lifetime import held_directories
from warmcell.pool.zygote import ZygoteProcess
from warmcell.runner.cell import Cell, CellLost

WRONG: Any = "print(1)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProcessBackend(WRONG), "config: must be ProcessConfig, not str"),
        (lambda: ProcessBackend(policy=SandboxPolicyBuilder()), "policy: must be SandboxPolicy, .*build()"),  # type: ignore[arg-type]
        (lambda: ProcessBackend(policy={}), "policy: must be SandboxPolicy, not dict"),  # type: ignore[arg-type]
        (lambda: Sandbox(policy=SandboxPolicyBuilder()), "policy: must be SandboxPolicy, .*build()"),
        (lambda: Sandbox(fetch_policy=["a.org"]), "fetch_policy: must be FetchPolicy, not list"),
        (lambda: asyncio.run(ProcessBackend().execute(WRONG)), "request: must be ExecRequest, not str"),
        (lambda: SandboxPolicyBuilder().allow_domain("a.org", 443), "ports: must be a list, not int"),  # type: ignore[arg-type]
        (lambda: SandboxPolicyBuilder().allow_domain("a.org", "443"), "ports: must be a list, not str"),  # type: ignore[arg-type]
    ],
)
def test_an_object_of_the_wrong_kind_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_a_temporary_directory_that_is_not_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_directories, "default_temporary_directory", lambda: "/tmp/\udcff")
    monkeypatch.setenv("TMPDIR", "/tmp/\udcff")
    with pytest.raises(BackendUnavailable, match=r"temporary directory '/tmp/\\udcff' is not UTF-8 .*TMPDIR"):
        Sandbox()


@pytest.mark.needs("user namespaces")
def test_cells_that_die_at_once_have_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with few descriptors, of which a zygote dies before it can say so."""

    def die(*_: object) -> None:
        raise CellLost("gone")

    monkeypatch.setattr(Cell, "await_ready", die)
    monkeypatch.setattr(ZygoteProcess, "await_death", lambda *_: None)
    with ProcessBackend() as backend, pytest.raises(EnforcerFailed, match="ulimit -n"):
        backend.execute_blocking(ExecRequest("python", "print(1)", timeout=20))
