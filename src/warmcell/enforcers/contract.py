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

    `probe` runs a child in a cage to prove that it works on this host, and raises `EnforcerUnavailable` with the remedy
    if it does not. `wrap_command` decides everything from the policy and changes nothing; it raises `PolicyViolation`
    if the policy names a path that does not exist. `configure_command` prepares the host if necessary and returns the
    keyword arguments for `subprocess`.
    """

    @property
    def name(self) -> str: ...

    def probe(self) -> None: ...

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand: ...

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]: ...
