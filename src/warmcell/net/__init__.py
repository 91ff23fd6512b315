"""Safe networking: one rule book, three ways out (`Sandbox.fetch`, the guest's fetch, the egress proxy).

The names below are loaded when they are first used: a sandbox without network pays nothing for this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmcell.net.authority import SandboxAuthority as SandboxAuthority
    from warmcell.net.client import SafeClient as SafeClient
    from warmcell.net.guest_env import proxy_environment as proxy_environment
    from warmcell.net.hostcall import handle_fetch_json as handle_fetch_json
    from warmcell.net.proxy import EgressProxy as EgressProxy
    from warmcell.net.rules import RuleBook as RuleBook
    from warmcell.net.rules import compile_rules as compile_rules
    from warmcell.net.secrets import SecretRef as SecretRef
    from warmcell.net.types import FetchPolicy as FetchPolicy
    from warmcell.net.types import FetchRequest as FetchRequest
    from warmcell.net.types import FetchResponse as FetchResponse
    from warmcell.net.types import RateLimit as RateLimit

_HOMES = {
    "EgressProxy": "proxy",
    "FetchPolicy": "types",
    "FetchRequest": "types",
    "FetchResponse": "types",
    "RateLimit": "types",
    "RuleBook": "rules",
    "SafeClient": "client",
    "SandboxAuthority": "authority",
    "SecretRef": "secrets",
    "compile_rules": "rules",
    "handle_fetch_json": "hostcall",
    "proxy_environment": "guest_env",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
