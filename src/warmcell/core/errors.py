"""Every error that Warmcell raises: one tree, stable codes, messages that say what to do.

What a guest does is data (`ExecResult`); what Warmcell could not or would not do is one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from warmcell.core.types import ExecResult


class SandboxError(Exception):
    """Base of the tree. `code` is stable and safe to branch on; `hint` says what to do, when there is something."""

    code: ClassVar[str] = "sandbox.error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[SandboxError], args: tuple[object, ...], state: dict[str, object]) -> SandboxError:
    """Errors cross process boundaries by pickle in callers' pools; constructors differ, so state is restored."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ExecutionTimeout(SandboxError):
    """The guest was still running at its deadline. Everything it started is gone; `result` has what it had printed."""

    code = "sandbox.timeout"

    def __init__(self, timeout: float, result: ExecResult | None = None) -> None:
        super().__init__(f"execution timed out after {timeout:g} s")
        self.timeout = timeout
        self.result = result


class MemoryExceeded(SandboxError):
    """The guest used more memory than it was given. `result` has what it had printed."""

    code = "sandbox.memory_exceeded"

    def __init__(self, limit_mb: int, result: ExecResult | None = None) -> None:
        super().__init__(f"memory limit of {limit_mb} MB exceeded")
        self.limit_mb = limit_mb
        self.result = result


class FuelExhausted(SandboxError):
    """A WASM guest spent its instruction budget, which is not the same as its time."""

    code = "sandbox.fuel_exhausted"

    def __init__(self, fuel: int, result: ExecResult | None = None) -> None:
        super().__init__(f"fuel of {fuel} exhausted")
        self.fuel = fuel
        self.result = result


class ExecutionFailed(SandboxError):
    """Warmcell could not carry out the run. Never raised because the guest exited with a non-zero status."""

    code = "sandbox.execution_failed"


class InvalidRequest(SandboxError):
    """The request is malformed. `field` names the part that is wrong; nothing was run."""

    code = "sandbox.invalid_request"

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message, hint=hint)
        self.field = field


class BackendUnavailable(SandboxError):
    """Something that the backend needs is not installed, or it was closed."""

    code = "sandbox.backend_unavailable"


class EnforcerUnavailable(SandboxError):
    """This host cannot enforce what was asked. Nothing was run."""

    code = "sandbox.enforcer_unavailable"

    def __init__(self, enforcer: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{enforcer}: {message}", hint=hint)
        self.enforcer = enforcer


class EnforcerFailed(SandboxError):
    """The enforcer should work here and did not: a step of building the cage failed. The guest never started."""

    code = "sandbox.enforcer_failed"

    def __init__(self, enforcer: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{enforcer}: {message}", hint=hint)
        self.enforcer = enforcer


class PolicyViolation(SandboxError):
    """The policy cannot be honoured as written (a path that does not exist, a rule that contradicts another)."""

    code = "sandbox.policy_violation"


class ProvisionFailed(SandboxError):
    """A workspace entry could not be put in place."""

    code = "sandbox.provision_failed"

    def __init__(self, resource: str, reason: str, suggestion: str | None = None) -> None:
        super().__init__(f"could not provision {resource}: {reason}", hint=suggestion)
        self.resource = resource
        self.reason = reason
        self.suggestion = suggestion


class SessionNotFound(SandboxError):
    """No session has that id."""

    code = "sandbox.session_not_found"


class SnapshotNotFound(SandboxError):
    """No snapshot has that id."""

    code = "sandbox.snapshot_not_found"


class PathTraversal(SandboxError):
    """The path would leave the workspace, or names something that is neither a file nor a directory."""

    code = "sandbox.path_traversal"

    def __init__(self, path: str, reason: str = "leads outside the workspace") -> None:
        super().__init__(f"{path!r} {reason}", hint="use a relative path inside the workspace")
        self.path = path


class SessionTimeout(SandboxError):
    """A cell of a session ran past its deadline; the session is gone."""

    code = "sandbox.session_timeout"

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the session timed out after {timeout:g} s")
        self.timeout = timeout


class SessionBusy(SandboxError):
    """The session is running something else."""

    code = "sandbox.session_busy"


class SandboxDestroyed(SandboxError):
    """The sandbox was destroyed; make a new one."""

    code = "sandbox.destroyed"

    def __init__(self, message: str = "the sandbox was destroyed") -> None:
        super().__init__(message, hint="create a new Sandbox")


class CommandNotFound(SandboxError):
    """The toolbox has no such command."""

    code = "sandbox.command_not_found"

    def __init__(self, command: str) -> None:
        super().__init__(f"{command}: command not found")
        self.command = command


class NetworkingDisabled(SandboxError):
    """The sandbox has no network; give it a `FetchPolicy` to change that."""

    code = "sandbox.networking_disabled"

    def __init__(self, message: str = "networking is disabled for this sandbox") -> None:
        super().__init__(message, hint="pass fetch_policy=FetchPolicy(allowed_domains=[...])")


class FetchFailed(SandboxError):
    """A fetch was refused by the rules or failed on the way. `reason` is a stable word such as `dns` or `refused`."""

    code = "sandbox.fetch_failed"

    def __init__(self, message: str, *, reason: str = "failed", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
