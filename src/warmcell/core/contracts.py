"""The two contracts that third parties implement: a backend and an enforcer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from warmcell.core.records import dataclass, field

if TYPE_CHECKING:
    from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult
    from warmcell.policy.model import SandboxPolicy


@runtime_checkable
class SandboxBackend(Protocol):
    """Runs requests.

    `execute` is called from any event loop, many at a time. It returns for every way in which a guest can end,
    raises `ExecutionTimeout` / `MemoryExceeded` (with the partial result) when a limit ended it, and any other
    `SandboxError` when the run could not be carried out. When it returns, raises or is cancelled, nothing of the
    run is left. `aclose` ends what is under way, may be called twice, and leaves nothing; runs that it ended, and
    `execute` after it, raise `BackendUnavailable`. A fork of the program may use its copy as if it were new.

    Ours also have `build` (see `backends.built.Program`), `run_many` and blocking forms of all; whoever judges programs
    does without them where a backend has none.
    """

    @property
    def name(self) -> str: ...

    def capabilities(self) -> BackendCapabilities: ...

    async def execute(self, request: ExecRequest) -> ExecResult: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WrappedCommand:
    """A command line that runs the original one under an enforcer, ready for `subprocess`."""

    program: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()

    @property
    def argv(self) -> list[str]:
        return [self.program, *self.args]


@runtime_checkable
class SandboxEnforcer(Protocol):
    """Turns a command into the same command inside a cage.

    `probe` proves that the cage works on this host by running a child in it, and raises `EnforcerUnavailable` with
    the remedy when it does not. `wrap_command` decides everything from the policy and touches nothing; it raises
    `PolicyViolation` when the policy names something that is not there. `configure_command` is for enforcers that
    must prepare the host first (an AppContainer profile, say) and returns the keyword arguments for `subprocess`.
    """

    @property
    def name(self) -> str: ...

    def probe(self) -> None: ...

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand: ...

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]: ...
