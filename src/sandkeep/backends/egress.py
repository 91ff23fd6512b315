"""Egress: the proxy behind a cell's only way out, one per run, all under rules that can change while runs go on."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandkeep.core.types import Denial
from sandkeep.policy.compile import CODE_DIR, PROXY_PORT
from sandkeep.policy.model import NetworkRule
from sandkeep.runner.cell import Cell

if TYPE_CHECKING:
    from sandkeep.net.authority import SandboxAuthority
    from sandkeep.net.proxy import EgressProxy
    from sandkeep.net.types import FetchPolicy

_BUNDLE, _CERTIFICATE = "ca-bundle.pem", "ca.pem"


@dataclass(frozen=True, slots=True)
class WayOut:
    """What the guest must be given to use it: variables, and the sandbox's own root certificate where there is one."""

    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


class Egress:
    """Belongs to a backend. Imports the networking code only when a run really has a way out."""

    def __init__(self, rules: FetchPolicy | tuple[NetworkRule, ...]) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[EgressProxy] = weakref.WeakSet()
        self._authority: SandboxAuthority | None = None

    def set_rules(self, rules: FetchPolicy | tuple[NetworkRule, ...]) -> None:
        """From the next connection on, in runs that are under way as well."""
        with self._lock:
            self._rules = rules
            for proxy in self._open:
                proxy.set_rules(rules)

    def open(self, cell: Cell, on_denial: Callable[[Denial], Any], cleanup: ExitStack) -> WayOut:
        """Starts the proxy on the listener that the cell opened in its own network; it ends with `cleanup`."""
        if cell.listener < 0:
            return WayOut()
        from sandkeep.net.guest_env import authority_environment, proxy_environment
        from sandkeep.net.proxy import EgressProxy

        listener = socket.socket(fileno=cell.listener)
        cell.listener = -1
        with self._lock:
            authority = self._certificate_authority()
            proxy = EgressProxy(listener, self._rules, on_denial=on_denial, authority=authority)
            self._open.add(proxy)
        cleanup.callback(proxy.close)
        proxy.start()
        env = proxy_environment(PROXY_PORT)
        if authority is None:
            return WayOut(env)
        env |= authority_environment(f"{CODE_DIR}/{_BUNDLE}", f"{CODE_DIR}/{_CERTIFICATE}")
        return WayOut(env, {_BUNDLE: authority.bundle_pem(), _CERTIFICATE: authority.certificate_pem})

    def _certificate_authority(self) -> SandboxAuthority | None:
        """Only where credentials are to be put into encrypted requests, and only for those hosts."""
        inject = getattr(self._rules, "inject", None)
        if inject and self._authority is None:
            from sandkeep.net.authority import SandboxAuthority

            self._authority = SandboxAuthority.for_policy(self._rules)  # type: ignore[arg-type]
        return self._authority if inject else None
