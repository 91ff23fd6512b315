"""How many sandboxes, snapshots and WebSockets each tenant has at a time."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

#: What is counted.
SANDBOXES, SNAPSHOTS, SOCKETS = range(3)


class Quota(Protocol):
    """One kind. What is taken or added is released once."""

    def take(self, tenant_id: str, limit: int) -> bool:
        """Count one more, unless the tenant has as many as it may have."""
        ...

    def add(self, tenant_id: str) -> None:
        """Count one more that exists already."""
        ...

    def release(self, tenant_id: str) -> None: ...

    def count(self, tenant_id: str) -> int: ...

    def total(self) -> int:
        """Those of all tenants."""
        ...


class TenantQuota:
    """By tenant, in one process."""

    def __init__(self, kind: int = SANDBOXES) -> None:
        self._used: Counter[str] = Counter()

    def take(self, tenant_id: str, limit: int) -> bool:
        if self._used[tenant_id] >= limit:
            return False
        self._used[tenant_id] += 1
        return True

    def add(self, tenant_id: str) -> None:
        self._used[tenant_id] += 1

    def release(self, tenant_id: str) -> None:
        self._used[tenant_id] -= 1

    def count(self, tenant_id: str) -> int:
        return self._used[tenant_id]

    def total(self) -> int:
        return self._used.total()
