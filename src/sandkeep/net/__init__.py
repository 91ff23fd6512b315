"""Safe networking: one rule book, three ways out (`Sandbox.fetch`, the guest's fetch, the egress proxy).

The names below are loaded when they are first used: a sandbox without network pays nothing for this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandkeep.net.authority import SandboxAuthority as SandboxAuthority
    from sandkeep.net.client import SafeClient as SafeClient
    from sandkeep.net.guest_env import proxy_environment as proxy_environment
    from sandkeep.net.hostcall import handle_fetch_json as handle_fetch_json
    from sandkeep.net.proxy import EgressProxy as EgressProxy
    from sandkeep.net.rules import RuleBook as RuleBook
    from sandkeep.net.rules import compile_rules as compile_rules
    from sandkeep.net.secrets import SecretRef as SecretRef
    from sandkeep.net.types import FetchPolicy as FetchPolicy
    from sandkeep.net.types import FetchRequest as FetchRequest
    from sandkeep.net.types import FetchResponse as FetchResponse
    from sandkeep.net.types import RateLimit as RateLimit

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
