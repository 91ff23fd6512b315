"""What several test modules share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest

MUST_WORK = os.environ.get("WARMCELL_MUST_WORK") == "1"


def require(condition: object, reason: str) -> None:
    """Skips when this host lacks something; fails instead where everything must work (CI)."""
    if condition:
        return
    if MUST_WORK:
        pytest.fail(f"WARMCELL_MUST_WORK=1, but: {reason}")
    pytest.skip(reason)


def _on_path(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


@cache
def has_user_namespaces() -> bool:
    """By trying: a child that unshares its user namespace."""
    command = ["unshare", "--user", "--map-root-user", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


def _is_linux() -> bool:
    return sys.platform == "linux"


def _is_root() -> bool:
    return os.geteuid() == 0


#: What `@pytest.mark.needs("...")` may name.
FEATURES: dict[str, Callable[[], bool]] = {
    "linux": _is_linux,
    "root": _is_root,
    "user namespaces": has_user_namespaces,
    **{program: _on_path(program) for program in ("bwrap", "node", "rustc", "bash", "zsh", "fish", "go", "curl", "jq")},
}

#: First of all in payloads that try addresses beyond loopback: where the guest is not alone, nothing is tried.
ALONE = """
import contextlib
routes = {line.split()[0] for line in open("/proc/net/route").readlines()[1:]}
with contextlib.suppress(FileNotFoundError):
    routes |= {line.split()[-1] for line in open("/proc/net/ipv6_route")}
if routes - {"lo"}:
    raise SystemExit(f"not in a network of its own: {routes}")
"""
ALONE_IN_SHELL = "[ $(wc -l < /proc/net/route) = 1 ] && ! grep -qv ' lo$' /proc/net/ipv6_route 2>/dev/null || exit 99"
