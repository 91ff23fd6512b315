"""The version of this installation: both ends of a link must have the same."""

from __future__ import annotations

from functools import cache


@cache
def own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("warmcell")
    except PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"
