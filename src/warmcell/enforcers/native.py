"""The enforcers that use our own Linux cage: the native one, and a weaker one without namespaces."""

from __future__ import annotations

import warmcell.cage
from warmcell.cage.environment import GUEST_MARK
from warmcell.cage.plan import encode
from warmcell.core.errors import EnforcerUnavailable
from warmcell.core.types import EffectiveLimits
from warmcell.enforcers import probe
from warmcell.enforcers.pin_paths import pin_paths
from warmcell.lifetime import host_program
from warmcell.lifetime.host_program import own_interpreter
from warmcell.policy.compile import compile_plan
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from warmcell.enforcers.contract import WrappedCommand


class NativeEnforcer:
    """The cage of `warmcell.cage`: namespaces, its own root, Landlock, seccomp, no privileges. Nothing to install.

    `ProcessBackend` uses the cage directly; `wrap_command` is for callers that start processes themselves. Memory and
    processes are then limited without a cgroup, which nothing would remove.
    """

    name = "native"

    def probe(self) -> None:
        host_program.check()  # from an archive, the cage's own files cannot be read
        resolve(SandboxPolicy(), (), EffectiveLimits(), probe.measure(), self.name)

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        if policy.network_rules:
            raise EnforcerUnavailable(
                self.name,
                "domain rules need a proxy beside the command, which a command line cannot bring",
                hint="run it through ProcessBackend, which does",
            )
        from warmcell.enforcers.bubblewrap import DEFAULT_ENV, check_command
        from warmcell.enforcers.contract import WrappedCommand

        self.probe()
        command = check_command(program, args)
        host = probe.measure()  # without control groups, which nothing would remove afterwards
        effective = resolve(policy, pin_paths(policy), effective_limits(policy), host, self.name)
        plan = compile_plan(effective, probe.layout(), ())
        interpreter = ("-I", "-S", str(warmcell.cage.__path__[0]), "command")
        given = {**DEFAULT_ENV, **policy.env}
        env = {GUEST_MARK + name if name.startswith("LD_") else name: value for name, value in given.items()}
        return WrappedCommand(own_interpreter(), (*interpreter, encode(plan), *command), env)

    def configure_command(self, command: WrappedCommand, policy: SandboxPolicy) -> dict[str, object]:
        return {"env": dict(command.env), "close_fds": True, "cwd": "/"}


class LandlockEnforcer(NativeEnforcer):
    """Landlock, seccomp and rlimits on the host's root. Weaker, so it must be requested by name."""

    name = "landlock"

    def wrap_command(self, program: str, args: Sequence[str], policy: SandboxPolicy) -> WrappedCommand:
        raise EnforcerUnavailable(
            self.name, "it needs a directory of its own for every run", hint="run it through ProcessBackend"
        )
