"""Every error that Warmcell raises: one tree, stable codes, messages that say what to do.

What a guest does is data (`ExecResult`); what Warmcell could not or would not do is one of these.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Literal

    from warmcell.core.types import ExecResult

    #: The program that was run, whoever called Warmcell, or Warmcell and the machine that it runs on.
    Fault = Literal["guest", "caller", "host"]


class SandboxError(Exception):
    """Base of the tree. `code` is stable and safe to branch on; `hint` says what to do, when there is something.

    `fault` says whose it was, so that nobody who scores programs takes our failure for theirs; `retryable` whether the
    same call, unchanged, may well succeed later. An error that does not say otherwise is ours.
    """

    code: ClassVar[str] = "sandbox.error"
    fault: Fault = "host"
    retryable: bool = False

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
    """The guest was still running at its deadline. Everything it started is gone; `result` has what it had printed.

    `clock` says which deadline: its time, or its `cpu_seconds`. `timeout` is how much of that it had.
    """

    code = "sandbox.timeout"
    fault = "guest"

    def __init__(
        self,
        timeout: float,
        result: ExecResult | None = None,
        *,
        phase: Literal["run", "build"] = "run",
        clock: Literal["wall", "cpu"] = "wall",
    ) -> None:
        what = "execution" if phase == "run" else phase
        super().__init__(f"{what} timed out after {timeout:g} s{' of cpu time' if clock == 'cpu' else ''}")
        self.timeout = timeout
        self.result = result
        self.phase = phase
        self.clock = clock


class MemoryExceeded(SandboxError):
    """The guest used more memory than it was given. `result` has what it had printed."""

    code = "sandbox.memory_exceeded"
    fault = "guest"

    def __init__(self, limit_mb: int, result: ExecResult | None = None) -> None:
        super().__init__(f"memory limit of {limit_mb} MB exceeded")
        self.limit_mb = limit_mb
        self.result = result


class FuelExhausted(SandboxError):
    """A WASM guest spent its instruction budget, which is not the same as its time."""

    code = "sandbox.fuel_exhausted"
    fault = "guest"

    def __init__(self, fuel: int, result: ExecResult | None = None) -> None:
        super().__init__(f"fuel of {fuel} exhausted")
        self.fuel = fuel
        self.result = result


class ExecutionFailed(SandboxError):
    """Warmcell could not carry out the run. Never raised because the guest exited with a non-zero status."""

    code = "sandbox.execution_failed"
    retryable = True


class InvalidRequest(SandboxError):
    """The request is malformed. `field` names the part that is wrong; nothing was run."""

    code = "sandbox.invalid_request"
    fault = "caller"

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message, hint=hint)
        self.field = field


class BackendUnavailable(SandboxError):
    """Something that the backend needs is not installed, or it was closed."""

    code = "sandbox.backend_unavailable"


class BackendBusy(SandboxError):
    """Nobody could be served within the queue's timeout: everything was taken. The guest never started."""

    code = "sandbox.backend_busy"
    retryable = True

    def __init__(self, waited: float, *, hint: str | None = "ask for less at once, or raise queue_timeout") -> None:
        super().__init__(f"the backend was busy: no place became free within {waited:g} s", hint=hint)
        self.waited = waited


class BuildFailed(SandboxError):
    """The program does not compile. `result` is the compiler's own: what it printed and how it ended."""

    code = "sandbox.build_failed"
    fault = "guest"

    def __init__(self, result: ExecResult) -> None:
        super().__init__(f"the program does not compile (the compiler's exit code is {result.exit_code})")
        self.result = result


class EnforcerUnavailable(SandboxError):
    """This host cannot enforce what was asked. Nothing was run."""

    code = "sandbox.enforcer_unavailable"

    def __init__(self, enforcer: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{enforcer}: {message}", hint=hint)
        self.enforcer = enforcer


class EnforcerFailed(SandboxError):
    """The enforcer should work here and did not: a step of building the cage failed. The guest never started."""

    code = "sandbox.enforcer_failed"
    retryable = True

    def __init__(self, enforcer: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{enforcer}: {message}", hint=hint)
        self.enforcer = enforcer


class PolicyViolation(SandboxError):
    """The policy cannot be honoured as written (a path that does not exist, a rule that contradicts another)."""

    code = "sandbox.policy_violation"
    fault = "caller"


class ProvisionFailed(SandboxError):
    """A workspace entry could not be put in place."""

    code = "sandbox.provision_failed"
    fault = "caller"

    def __init__(self, resource: str, reason: str, suggestion: str | None = None) -> None:
        super().__init__(f"could not provision {resource}: {reason}", hint=suggestion)
        self.resource = resource
        self.reason = reason
        self.suggestion = suggestion


class SessionNotFound(SandboxError):
    """No session has that id."""

    code = "sandbox.session_not_found"
    fault = "caller"


class SnapshotNotFound(SandboxError):
    """No snapshot has that id."""

    code = "sandbox.snapshot_not_found"
    fault = "caller"


class PathTraversal(SandboxError):
    """The path would leave the workspace, or names something that is neither a file nor a directory."""

    code = "sandbox.path_traversal"
    fault = "caller"

    def __init__(self, path: str, reason: str = "leads outside the workspace") -> None:
        super().__init__(f"{path!r} {reason}", hint="use a relative path inside the workspace")
        self.path = path


class SessionTimeout(SandboxError):
    """A cell of a session ran past its deadline; the session is gone."""

    code = "sandbox.session_timeout"
    fault = "guest"

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the session timed out after {timeout:g} s")
        self.timeout = timeout


class SessionBusy(SandboxError):
    """The session is running something else."""

    code = "sandbox.session_busy"
    fault = "caller"
    retryable = True


class SessionEnded(SandboxError):
    """The session's interpreter is gone, and its variables with it. `restart()` begins a new one.

    Where a cell was under way, `result` has what it had printed.
    """

    code = "sandbox.session_ended"
    fault = "guest"

    def __init__(self, reason: str, result: ExecResult | None = None) -> None:
        super().__init__(f"the session has ended: {reason}", hint="restart() begins anew, without the variables")
        self.reason = reason
        self.result = result


class SandboxDestroyed(SandboxError):
    """The sandbox was destroyed; make a new one."""

    code = "sandbox.destroyed"
    fault = "caller"

    def __init__(self, message: str = "the sandbox was destroyed") -> None:
        super().__init__(message, hint="create a new Sandbox")


class CommandNotFound(SandboxError):
    """The sandbox has no such command, or what goes by that name cannot be run; `str()` says which."""

    code = "sandbox.command_not_found"
    fault = "caller"

    def __init__(self, command: str, reason: str = "command not found", *, hint: str | None = None) -> None:
        super().__init__(f"{command}: {reason}", hint=hint)
        self.command = command


class NetworkingDisabled(SandboxError):
    """The sandbox has no network; give it a `FetchPolicy` to change that."""

    code = "sandbox.networking_disabled"
    fault = "caller"

    def __init__(self, message: str = "networking is disabled for this sandbox") -> None:
        super().__init__(message, hint="pass fetch_policy=FetchPolicy(allowed_domains=[...])")


class FetchFailed(SandboxError):
    """A fetch was refused by the rules or failed on the way. `reason` is a stable word such as `dns` or `refused`.

    What was asked for and may not be had is the caller's; what failed on the way is the network's, and may pass.
    """

    code = "sandbox.fetch_failed"
    retryable = True

    def __init__(self, message: str, *, reason: str = "failed", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        if reason in ("invalid", "refused", "too_large"):
            self.fault, self.retryable = "caller", False
