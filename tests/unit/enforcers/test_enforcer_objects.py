"""Enforcers as objects: what `get_enforcer()` returns, and other packages' own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from warmcell import ExecRequest, ProcessBackend, ProcessConfig, SandboxPolicy, SandboxPolicyBuilder, get_enforcer
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, InvalidRequest
from warmcell.enforcers.contract import WrappedCommand

SMALL = ExecRequest("python", "import os; print(6*7, os.environ.get('WRAPPED'))", 20)


class Wrapper:
    """Somebody's enforcer: it confines nothing, but all goes through it."""

    name = "somebodys"

    def __init__(self, asked: Mapping[str, object] | None = None, pass_fds: tuple[int, ...] = ()) -> None:
        self.asked = {} if asked is None else dict(asked)
        self.pass_fds = pass_fds
        self.probed = 0
        self.wrapped: list[tuple[str, tuple[str, ...], SandboxPolicy]] = []

    def probe(self) -> None:
        self.probed += 1

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        self.wrapped.append((program, tuple(args), policy))
        code = next(path for path in policy.allowed_paths if path.target == "/code").path
        placed = tuple(item.replace("/code", code) for item in args)
        return WrappedCommand("/usr/bin/env", ("-i", "WRAPPED=yes", program, *placed), {}, self.pass_fds)

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]:
        return {"env": dict(command.env), "close_fds": True, "cwd": "/", **self.asked}


def test_the_form_that_people_know() -> None:
    policy = SandboxPolicyBuilder().allow_process_spawn().build()
    with ProcessBackend.with_sandbox(ProcessConfig(), get_enforcer(), policy) as backend:
        assert backend.execute_blocking(SMALL).stdout == "42 None\n"
        assert backend.capabilities().isolation_class == "process+sandbox"


@pytest.mark.parametrize("name", ["native", "landlock", "bubblewrap"])
def test_ours_as_an_object_is_what_it_is_by_name(name: str) -> None:
    with ProcessBackend(enforcer=get_enforcer(name)) as as_object, ProcessBackend(enforcer=name) as by_name:
        assert as_object.capabilities() == by_name.capabilities()
        assert as_object.execute_blocking(SMALL).enforced == by_name.execute_blocking(SMALL).enforced


def test_another_packages_wraps_every_command() -> None:
    enforcer = Wrapper()
    with ProcessBackend.with_sandbox(None, enforcer) as backend:
        assert enforcer.probed == 1
        result = backend.execute_blocking(SMALL)
        assert result.stdout == "42 yes\n" and result.enforced.enforcer == "somebodys"
        assert result.enforced.isolation_class == "process+sandbox"
        assert backend.execute_blocking(ExecRequest("command", "exit 3", 20)).exit_code == 3
    program, _, policy = enforcer.wrapped[0]
    assert program.startswith("/") and policy.limits is not None and policy.limits.memory_mb == 512


@pytest.mark.parametrize(
    ("asked", "pass_fds", "what"),
    [
        ({"preexec_fn": print}, (), "preexec_fn"),
        ({"user": 1}, (), "user"),
        ({}, (7,), "pass_fds"),
        ({"pass_fds": (7,)}, (), "pass_fds"),
    ],
)
def test_what_cells_cannot_give_is_refused(asked: dict[str, object], pass_fds: tuple[int, ...], what: str) -> None:
    with ProcessBackend(enforcer=Wrapper(asked, pass_fds)) as backend, pytest.raises(EnforcerUnavailable, match=what):
        backend.execute_blocking(SMALL)


def test_what_it_cannot_keep_is_refused_before_it_is_asked() -> None:
    policy = SandboxPolicyBuilder().allow_domain("example.org", [443]).build()
    with (
        ProcessBackend(enforcer=Wrapper(), policy=policy) as backend,
        pytest.raises(EnforcerUnavailable, match="domain"),
    ):
        backend.execute_blocking(SMALL)


def test_its_own_failures_are_typed() -> None:
    class Broken(Wrapper):
        def wrap_command(self, *_: Any) -> WrappedCommand:
            raise RuntimeError("out of order")

    class Absent(Wrapper):
        def probe(self) -> None:
            raise RuntimeError("not on this host")

    with ProcessBackend(enforcer=Broken()) as backend, pytest.raises(EnforcerFailed, match=r"somebodys.*out of order"):
        backend.execute_blocking(SMALL)
    with pytest.raises(EnforcerUnavailable, match=r"somebodys.*not on this host"):
        ProcessBackend.with_sandbox(None, Absent())


def test_a_name_of_ours_is_taken() -> None:
    class Impostor(Wrapper):
        name = "native"

    with pytest.raises(InvalidRequest, match="built-in name"):
        ProcessBackend.with_sandbox(None, Impostor())


@pytest.mark.parametrize("bad", [object(), 7, sys, Wrapper])
def test_an_object_that_is_not_an_enforcer_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="enforcer"):
        ProcessBackend.with_sandbox(None, bad)


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_variables_of_a_guests_loader_are_not_those_of_our_interpreter() -> None:
    """They may name a directory that guests write to, and our interpreter starts outside of the cage."""
    policy = SandboxPolicyBuilder().allow_process_spawn().env("LD_LIBRARY_PATH", "/work/lib").env("NAME", "x").build()
    enforcer = get_enforcer("native")
    command = enforcer.wrap_command("/usr/bin/env", [], policy)
    options: dict[str, Any] = enforcer.configure_command(command, policy)
    assert options["env"]["NAME"] == "x" and not any(name.startswith("LD_") for name in options["env"])
    ended = subprocess.run(command.argv, capture_output=True, text=True, timeout=60, check=True, **options)
    assert {"LD_LIBRARY_PATH=/work/lib", "NAME=x"} <= set(ended.stdout.splitlines())
