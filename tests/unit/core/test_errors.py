"""One tree, stable codes, messages with a remedy, and a way across process boundaries."""

from __future__ import annotations

import copy
import pickle

import pytest

from warmcell import errors
from warmcell.core.types import ExecResult

PARTIAL = ExecResult(stdout="so far")
EXAMPLES: list[tuple[errors.SandboxError, str]] = [
    (errors.SandboxError("x"), "sandbox.error"),
    (errors.ExecutionTimeout(1.5, PARTIAL), "sandbox.timeout"),
    (errors.MemoryExceeded(64, PARTIAL), "sandbox.memory_exceeded"),
    (errors.FuelExhausted(10, PARTIAL), "sandbox.fuel_exhausted"),
    (errors.ExecutionFailed("x"), "sandbox.execution_failed"),
    (errors.InvalidRequest("x", field="code", hint="y"), "sandbox.invalid_request"),
    (errors.BackendUnavailable("x"), "sandbox.backend_unavailable"),
    (errors.EnforcerUnavailable("native", "x", hint="y"), "sandbox.enforcer_unavailable"),
    (errors.EnforcerFailed("native", "x"), "sandbox.enforcer_failed"),
    (errors.PolicyViolation("x"), "sandbox.policy_violation"),
    (errors.ProvisionFailed("file", "gone", "look"), "sandbox.provision_failed"),
    (errors.SessionNotFound("x"), "sandbox.session_not_found"),
    (errors.SnapshotNotFound("x"), "sandbox.snapshot_not_found"),
    (errors.PathTraversal("../x"), "sandbox.path_traversal"),
    (errors.SessionTimeout(3), "sandbox.session_timeout"),
    (errors.SessionBusy("x"), "sandbox.session_busy"),
    (errors.SandboxDestroyed(), "sandbox.destroyed"),
    (errors.CommandNotFound("frobnicate"), "sandbox.command_not_found"),
    (errors.NetworkingDisabled(), "sandbox.networking_disabled"),
    (errors.FetchFailed("x", reason="dns"), "sandbox.fetch_failed"),
]
each = pytest.mark.parametrize(("error", "code"), EXAMPLES, ids=lambda value: getattr(value, "code", ""))


@each
def test_codes_are_stable(error: errors.SandboxError, code: str) -> None:
    assert error.code == code
    assert isinstance(error, errors.SandboxError)


def test_every_error_has_an_example_and_its_own_code() -> None:
    every = {getattr(errors, name) for name in errors.__all__}
    kinds = {kind for kind in every if kind.__module__ == "warmcell.core.errors"}
    assert {type(error) for error, _ in EXAMPLES} == kinds
    assert len({kind.code for kind in kinds}) == len(kinds)


@each
def test_errors_survive_pickling_and_copying(error: errors.SandboxError, code: str) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (str(twin), twin.__dict__) == (str(error), error.__dict__)


@each
def test_the_message_comes_first_and_the_hint_is_in_it(error: errors.SandboxError, code: str) -> None:
    assert str(error).startswith(error.message)
    assert error.hint is None or error.hint in str(error)


def test_what_errors_carry() -> None:
    timeout = errors.ExecutionTimeout(1.5, PARTIAL)
    assert (timeout.timeout, timeout.result) == (1.5, PARTIAL)
    assert "timed out after 1.5 s" in str(timeout)
    memory = errors.MemoryExceeded(64)
    assert (memory.limit_mb, memory.result) == (64, None)
    assert "64 MB" in str(memory)
    assert errors.InvalidRequest("is empty", field="code").field == "code"
    provision = errors.ProvisionFailed("file", "gone", "look")
    assert (provision.resource, provision.reason, provision.suggestion) == ("file", "gone", "look")
    assert errors.PathTraversal("../x").path == "../x"
    assert errors.EnforcerUnavailable("native", "x").enforcer == "native"
    assert errors.FetchFailed("x", reason="dns").reason == "dns"
