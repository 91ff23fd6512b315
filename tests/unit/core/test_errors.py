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
    (errors.BackendBusy(60), "sandbox.backend_busy"),
    (errors.NodeLost("0123456789abcdef", "it left the cluster"), "sandbox.node_lost"),
    (errors.BuildFailed(ExecResult(stderr="error: no", exit_code=1)), "sandbox.build_failed"),
    (errors.EnforcerUnavailable("native", "x", hint="y"), "sandbox.enforcer_unavailable"),
    (errors.EnforcerFailed("native", "x"), "sandbox.enforcer_failed"),
    (errors.PolicyViolation("x"), "sandbox.policy_violation"),
    (errors.ProvisionFailed("file", "gone", "look"), "sandbox.provision_failed"),
    (errors.SessionNotFound("x"), "sandbox.session_not_found"),
    (errors.SnapshotNotFound("x"), "sandbox.snapshot_not_found"),
    (errors.SnapshotInvalid("x"), "sandbox.snapshot_invalid"),
    (errors.WorkspaceNotFound("x"), "sandbox.workspace_not_found"),
    (errors.ImageNotFound("x"), "sandbox.image_not_found"),
    (errors.ImageInvalid("x"), "sandbox.image_invalid"),
    (errors.PathTraversal("../x"), "sandbox.path_traversal"),
    (errors.SessionTimeout(3), "sandbox.session_timeout"),
    (errors.SessionBusy("x"), "sandbox.session_busy"),
    (errors.SessionEnded("killed by signal 9"), "sandbox.session_ended"),
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


#: Whose fault each error is, and whether the same call may succeed later.
FAULTS = {
    "AccessDenied": ("caller", False),
    "AlreadyExists": ("caller", False),
    "ArchiveRejected": ("caller", False),
    "BackendBusy": ("host", True),
    "NodeLost": ("host", True),
    "BackendUnavailable": ("host", False),
    "BuildFailed": ("guest", False),
    "CommandNotFound": ("caller", False),
    "EnforcerFailed": ("host", True),
    "EnforcerUnavailable": ("host", False),
    "ExecutionFailed": ("host", True),
    "ExecutionTimeout": ("guest", False),
    "FetchFailed": ("host", True),
    "FileMissing": ("caller", False),
    "FuelExhausted": ("guest", False),
    "ImageInvalid": ("caller", False),
    "SnapshotInvalid": ("caller", False),
    "WorkspaceNotFound": ("caller", False),
    "ImageNotFound": ("caller", False),
    "InvalidRequest": ("caller", False),
    "LimitExceeded": ("caller", False),
    "MemoryExceeded": ("guest", False),
    "NetworkingDisabled": ("caller", False),
    "PatchRejected": ("caller", False),
    "PathTraversal": ("caller", False),
    "PolicyViolation": ("caller", False),
    "ProvisionFailed": ("caller", False),
    "SandboxDestroyed": ("caller", False),
    "SandboxError": ("host", False),
    "SessionBusy": ("caller", True),
    "SessionEnded": ("guest", False),
    "SessionNotFound": ("caller", False),
    "SessionTimeout": ("guest", False),
    "SnapshotNotFound": ("caller", False),
    "WorkspaceError": ("caller", False),
    "WrongKind": ("caller", False),
}


def test_every_error_says_whose_fault_it_was_and_whether_to_try_again() -> None:
    said = {name: (getattr(errors, name).fault, getattr(errors, name).retryable) for name in errors.__all__}
    assert said == FAULTS


@pytest.mark.parametrize(
    ("reason", "fault", "retryable"),
    [
        ("refused", "caller", False),
        ("invalid", "caller", False),
        ("too_large", "caller", False),
        ("dns", "host", True),
        ("connect", "host", True),
        ("tls", "host", True),
        ("timeout", "host", True),
        ("rate_limited", "host", True),
    ],
)
def test_a_fetch_that_may_not_be_is_the_callers_one_that_fails_on_the_way_is_not(
    reason: str, fault: str, retryable: bool
) -> None:
    error = errors.FetchFailed("x", reason=reason)
    assert (error.fault, error.retryable) == (fault, retryable)
    assert (pickle.loads(pickle.dumps(error)).fault, copy.copy(error).retryable) == (fault, retryable)


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
    ended = ExecResult(stderr="error: no", exit_code=1)
    assert errors.BuildFailed(ended).result is ended
    assert "exit code is 1" in str(errors.BuildFailed(ended))
    assert (timeout.phase, errors.ExecutionTimeout(2, phase="build").phase) == ("run", "build")
    assert str(errors.ExecutionTimeout(2, phase="build")) == "build timed out after 2 s"
    assert (timeout.clock, errors.ExecutionTimeout(2, clock="cpu").clock) == ("wall", "cpu")
    assert str(errors.ExecutionTimeout(0.5, clock="cpu")) == "execution timed out after 0.5 s of cpu time"
    assert errors.SessionEnded("killed").reason == "killed"
    assert errors.BackendBusy(60).waited == 60


def test_the_remedy_for_an_ended_session_is_possible() -> None:
    assert "restart()" in str(errors.SessionEnded("its interpreter exited with status 1").hint)
    closed = errors.SessionEnded(errors.SessionEnded.CLOSED)
    assert "restart()" not in str(closed.hint) and "session(...)" in str(closed.hint)
