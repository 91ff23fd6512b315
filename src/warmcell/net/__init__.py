"""Safe networking: one rule book for `Sandbox.fetch`, the guest's fetch and the egress proxy.

Names are imported on first use, so a sandbox without network does not pay for this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmcell.net.credentials import SecretRef as SecretRef
    from warmcell.net.fetch.messages import FetchRequest as FetchRequest
    from warmcell.net.fetch.messages import FetchResponse as FetchResponse
    from warmcell.net.fetch.safe_client import SafeClient as SafeClient
    from warmcell.net.fetch.safe_client import handle_fetch_json as handle_fetch_json
    from warmcell.net.proxy.certificate_authority import SandboxAuthority as SandboxAuthority
    from warmcell.net.proxy.egress_proxy import EgressProxy as EgressProxy
    from warmcell.net.proxy.egress_proxy import proxy_environment as proxy_environment
    from warmcell.net.rules.fetch_policy import FetchPolicy as FetchPolicy
    from warmcell.net.rules.fetch_policy import RateLimit as RateLimit
    from warmcell.net.rules.rule_book import RuleBook as RuleBook
    from warmcell.net.rules.rule_book import compile_rules as compile_rules

_MODULES = {
    "EgressProxy": "proxy.egress_proxy",
    "FetchPolicy": "rules.fetch_policy",
    "FetchRequest": "fetch.messages",
    "FetchResponse": "fetch.messages",
    "RateLimit": "rules.fetch_policy",
    "RuleBook": "rules.rule_book",
    "SafeClient": "fetch.safe_client",
    "SandboxAuthority": "proxy.certificate_authority",
    "SecretRef": "credentials",
    "compile_rules": "rules.rule_book",
    "handle_fetch_json": "fetch.safe_client",
    "proxy_environment": "proxy.egress_proxy",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
