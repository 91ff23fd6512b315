"""SandboxEnforcer: the contract that enforcers of this and of other packages implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from warmcell.core.records import dataclass, field

if TYPE_CHECKING:
    from warmcell.policy.model import SandboxPolicy


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
    the remedy if it does not. `wrap_command` decides everything from the policy and touches nothing; it raises
    `PolicyViolation` if the policy names a path that does not exist. `configure_command` is for enforcers that must
    prepare the host first (an AppContainer profile, say) and returns the keyword arguments for `subprocess`.
    """

    @property
    def name(self) -> str: ...

    def probe(self) -> None: ...

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand: ...

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]: ...
