"""The native Linux cage as an enforcer, and its weaker sibling without namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from sandkeep.core.contracts import WrappedCommand
from sandkeep.core.errors import EnforcerUnavailable
from sandkeep.core.types import Limits
from sandkeep.enforcers import probe
from sandkeep.policy.model import SandboxPolicy
from sandkeep.policy.resolve import resolve


class NativeEnforcer:
    """Namespaces, own root, Landlock, seccomp, no privileges: built by `sandkeep.cage`, needs nothing installed."""

    name = "native"

    def probe(self) -> None:
        resolve(SandboxPolicy(), (), Limits(), probe.measure(), self.name)

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        raise EnforcerUnavailable(
            self.name,
            "it builds the cage around a forked child and has no command line of its own",
            hint="run it through ProcessBackend",
        )

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]:
        return {}


class LandlockEnforcer(NativeEnforcer):
    """Landlock, seccomp and rlimits on the host's own root. Weaker, and so only by name."""

    name = "landlock"
