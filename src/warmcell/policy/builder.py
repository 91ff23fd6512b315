"""SandboxPolicyBuilder: builds a policy by chained calls. Each returns a new builder."""

from __future__ import annotations

import os
from collections.abc import Iterable

from warmcell.core.records import replace
from warmcell.core.types import Limits
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy, as_tuple
from warmcell.policy.places import check_place


class SandboxPolicyBuilder:
    """`SandboxPolicyBuilder().allow_read("/data").allow_domain("pypi.org").build()`; without calls, deny-all."""

    def __init__(self, policy: SandboxPolicy | None = None) -> None:
        self._policy = policy or SandboxPolicy()

    def _with(self, **changes: object) -> SandboxPolicyBuilder:
        return SandboxPolicyBuilder(replace(self._policy, **changes))  # type: ignore[arg-type]

    def _allow_path(self, path: str | os.PathLike[str], mode: AccessMode, at: str | None) -> SandboxPolicyBuilder:
        allowed = AllowedPath(os.path.abspath(path), mode, at)
        check_place(allowed.target)
        return self._with(allowed_paths=(*self._policy.allowed_paths, allowed))

    def allow_read(self, path: str | os.PathLike[str], *, at: str | None = None) -> SandboxPolicyBuilder:
        return self._allow_path(path, AccessMode.READ_ONLY, at)

    def allow_read_write(self, path: str | os.PathLike[str], *, at: str | None = None) -> SandboxPolicyBuilder:
        return self._allow_path(path, AccessMode.READ_WRITE, at)

    def allow_network(self) -> SandboxPolicyBuilder:
        """Allow all network access, through the host's network. Prefer `allow_domain`."""
        return self._with(allow_network=True)

    def allow_domain(
        self,
        domain: str,
        ports: Iterable[int] = (80, 443),
        *,
        methods: Iterable[str] | None = None,
        path_prefixes: Iterable[str] | None = None,
    ) -> SandboxPolicyBuilder:
        rule = NetworkRule(
            domain,
            as_tuple("ports", ports),
            None if methods is None else tuple(methods),
            None if path_prefixes is None else tuple(path_prefixes),
        )
        return self._with(network_rules=(*self._policy.network_rules, rule))

    def allow_process_spawn(self) -> SandboxPolicyBuilder:
        return self._with(allow_process_spawn=True)

    def allow_tracing(self) -> SandboxPolicyBuilder:
        """Allow debuggers such as gdb and strace, and new processes. Exposes `ptrace` to guests."""
        return self._with(allow_process_spawn=True, allow_tracing=True)

    def allow_gpu(self, devices: Iterable[int] | None = None) -> SandboxPolicyBuilder:
        """Allow the GPUs with these numbers (0 is `/dev/nvidia0`), or all. Exposes their driver to guests."""
        return self._with(gpus="all" if devices is None else tuple(devices))

    def env(self, key: str, value: str) -> SandboxPolicyBuilder:
        return self._with(env={**self._policy.env, key: value})

    def limits(self, limits: Limits) -> SandboxPolicyBuilder:
        return self._with(limits=limits)

    def build(self) -> SandboxPolicy:
        return self._policy
