"""How much one egress proxy may carry."""

from __future__ import annotations

from dataclasses import dataclass

from warmcell.core.types import MIB


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Bounds for each connection (seconds, bytes in each direction) and for all at once.

    `tls_ports` carry nothing but TLS, `http_ports` nothing but HTTP; what a tunnel to another port carries is the
    business of the rule that allowed the port.
    """

    connections: int = 128
    max_bytes: int = 2048 * MIB
    head_seconds: float = 10.0
    idle_seconds: float = 120.0
    total_seconds: float = 1800.0
    tls_ports: frozenset[int] = frozenset({443})
    http_ports: frozenset[int] = frozenset({80})
