"""Every error that Warmcell raises: one tree, stable codes, messages that say what to do.

What a guest does is data (`ExecResult`); what Warmcell could not or would not do is one of these.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Literal

    from warmcell.core.results import ExecResult

    #: The program that was run, the caller of Warmcell, or Warmcell and its host.
    Fault = Literal["guest", "caller", "host"]


class SandboxError(Exception):
    """Base of the tree. `code` is stable and safe to branch on; `hint` says what to do, if there is something.

    `fault` says whose fault it is, so that a score never counts our failure as the program's; `retryable` whether the
    same call may succeed later. By default the fault is ours.
    """

    code: ClassVar[str] = "sandbox.error"
    fault: Fault = "host"
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[SandboxError], args: tuple[object, ...], state: dict[str, object]) -> SandboxError:
    """Errors cross process boundaries by pickle in callers' pools; constructors differ, so the state is restored."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ExecutionTimeout(SandboxError):
    """The guest was still running at its deadline. Everything it started is gone; `result` has its output.

    `clock` says which limit: wall time or `cpu_seconds`. `timeout` is that limit.
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
        self.timeout, self.result, self.phase, self.clock = timeout, result, phase, clock


class MemoryExceeded(SandboxError):
    """The guest used more memory than its limit. `result` has its output."""

    code = "sandbox.memory_exceeded"
    fault = "guest"

    def __init__(self, limit_mb: int, result: ExecResult | None = None, *, is_gpu: bool = False) -> None:
        super().__init__(f"{'GPU ' if is_gpu else ''}memory limit of {limit_mb} MB exceeded")
        self.limit_mb, self.is_gpu, self.result = limit_mb, is_gpu, result


class FuelExhausted(SandboxError):
    """A WASM guest spent its instruction budget, which is not its time."""

    code = "sandbox.fuel_exhausted"
    fault = "guest"

    def __init__(self, fuel: int, result: ExecResult | None = None) -> None:
        super().__init__(f"fuel of {fuel} exhausted")
        self.fuel, self.result = fuel, result


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
    """Something that the backend needs is not installed, or the backend was closed."""

    code = "sandbox.backend_unavailable"


class BackendBusy(SandboxError):
    """No slot became free within the queue timeout. The guest never started."""

    code = "sandbox.backend_busy"
    retryable = True

    def __init__(self, waited: float, *, hint: str | None = "run fewer at once, or raise queue_timeout") -> None:
        super().__init__(f"the backend was busy: no slot became free within {waited:g} s", hint=hint)
        self.waited = waited


class NodeLost(SandboxError):
    """The node of a cluster that carried this out is gone. `node` is its id.

    Nothing was learnt about the program. `has_output` says whether the caller got output of it before.
    """

    code = "sandbox.node_lost"
    retryable = True

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"node {node[:12]} was lost: {reason}", hint="run it again; it goes to another node")
        self.node, self.reason = node, reason
        self.has_output = False


class BuildFailed(SandboxError):
    """The program does not compile, or a step of an image's build failed.

    `result` is the compiler's or the step's: its output and exit code. `step` is the step as it was written, else "".
    """

    code = "sandbox.build_failed"
    fault = "guest"

    def __init__(self, result: ExecResult, *, step: str = "", reason: str = "", hint: str | None = None) -> None:
        if step:
            super().__init__(f"{step!r} failed: {reason or f'exit code {result.exit_code}'}", hint=hint)
        else:
            super().__init__(f"the program does not compile (the compiler's exit code is {result.exit_code})")
        self.result, self.step = result, step


class _EnforcerError(SandboxError):
    """Names the enforcer, as a field and in the message."""

    def __init__(self, enforcer: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{enforcer}: {message}", hint=hint)
        self.enforcer = enforcer


class EnforcerUnavailable(_EnforcerError):
    """This host cannot enforce what was requested. Nothing was run."""

    code = "sandbox.enforcer_unavailable"


class EnforcerFailed(_EnforcerError):
    """A step of building the cage failed on a host where it should work. The guest never started."""

    code = "sandbox.enforcer_failed"
    retryable = True


class PolicyViolation(SandboxError):
    """The policy cannot be enforced as written (a path that does not exist, a rule that contradicts another)."""

    code = "sandbox.policy_violation"
    fault = "caller"


class ProvisionFailed(SandboxError):
    """A workspace entry could not be put in place."""

    code = "sandbox.provision_failed"
    fault = "caller"

    def __init__(self, resource: str, reason: str, suggestion: str | None = None) -> None:
        super().__init__(f"could not provision {resource}: {reason}", hint=suggestion)
        self.resource, self.reason, self.suggestion = resource, reason, suggestion


class SessionNotFound(SandboxError):
    """No session has that id."""

    code = "sandbox.session_not_found"
    fault = "caller"


class SnapshotNotFound(SandboxError):
    """No snapshot has that id."""

    code = "sandbox.snapshot_not_found"
    fault = "caller"


class SnapshotInvalid(SandboxError):
    """A snapshot, or the store that it is in, was damaged or made by somebody else. Nothing of it is used."""

    code = "sandbox.snapshot_invalid"
    fault = "caller"


class WorkspaceNotFound(SandboxError):
    """The store has no workspace of that id or name."""

    code = "sandbox.workspace_not_found"
    fault = "caller"

    def __init__(self, name: str) -> None:
        super().__init__(f"no workspace {name!r}", hint="`warmcell workspace list` shows the workspaces")
        self.name = name


class ImageNotFound(SandboxError):
    """The store or the registry has no image of that name or digest."""

    code = "sandbox.image_not_found"
    fault = "caller"

    def __init__(
        self, reference: str, *, place: str = "the store", hint: str | None = "`warmcell image list` shows the images"
    ) -> None:
        super().__init__(f"no image {reference!r} in {place}", hint=hint)
        self.reference = reference


class ImageInvalid(SandboxError):
    """The image is malformed, hostile, too large, or not for this machine. Nothing of it is in the store."""

    code = "sandbox.image_invalid"
    fault = "caller"


class PathTraversal(SandboxError):
    """The path would leave the workspace, or names something that is neither a file nor a directory."""

    code = "sandbox.path_traversal"
    fault = "caller"

    def __init__(self, path: str, reason: str = "leads outside the workspace") -> None:
        super().__init__(f"{path!r} {reason}", hint="use a relative path inside the workspace")
        self.path = path


class SessionTimeout(SandboxError):
    """A cell of a session passed its deadline; the session is gone."""

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
    """The session's interpreter is gone, and its variables with it. `restart()` starts a new one, unless it was closed.

    If a cell was running, `result` has its output.
    """

    code = "sandbox.session_ended"
    fault = "guest"
    #: The reason of a session that cannot be restarted.
    CLOSED = "it was closed"

    def __init__(self, reason: str, result: ExecResult | None = None) -> None:
        remedy = "sandbox.session(...) opens another" if reason == self.CLOSED else "restart() starts a new one"
        super().__init__(f"the session has ended: {reason}", hint=f"{remedy}, without the variables")
        self.reason, self.result = reason, result


class SandboxDestroyed(SandboxError):
    """The sandbox was destroyed; create a new one."""

    code = "sandbox.destroyed"
    fault = "caller"

    def __init__(self, message: str = "the sandbox was destroyed") -> None:
        super().__init__(message, hint="create a new Sandbox")


class CommandNotFound(SandboxError):
    """The sandbox has no such command, or it cannot be executed; `str()` says which."""

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
    """A fetch was refused by the rules or failed. `reason` is a stable word such as `dns` or `refused`.

    A refused request is the caller's fault; a failed one is the network's, and may be retried.
    """

    code = "sandbox.fetch_failed"
    retryable = True

    def __init__(self, message: str, *, reason: str = "failed", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        if reason in ("invalid", "refused", "too_large"):
            self.fault, self.retryable = "caller", False
