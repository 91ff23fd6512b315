"""Which Landlock the running kernel has. Apart from its use, for those who only ask."""

from __future__ import annotations

from .syscalls import call

_CREATE_VERSION = 1


def abi() -> int:
    """The version that the running kernel offers; 0 when there is none."""
    try:
        return call("landlock_create_ruleset", None, 0, _CREATE_VERSION)
    except OSError:
        return 0
