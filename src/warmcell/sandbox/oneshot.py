"""`run` and `arun`: one call, one result, through a backend that the whole process shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmcell.backends.shared import shared_backend
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import ExecRequest, ExecResult, Limits
from warmcell.languages.registry import canonical


def _request(
    code: str, language: str, timeout: float, stdin: str | bytes | None, env: Mapping[str, str] | None, limits: Any
) -> ExecRequest:
    memory = limits.pop("memory_limit_mb", None)
    unknown = sorted(set(limits) - set(Limits.__slots__))
    if unknown:
        raise InvalidRequest(f"unknown limit {unknown[0]!r}; one of {', '.join(Limits.__slots__)}", field="limits")
    return ExecRequest(
        language=canonical(language),
        code=code,
        timeout=timeout,
        stdin=stdin,
        memory_limit_mb=memory,
        env=env or {},
        limits=Limits(**limits) if limits else None,
    )


def run(
    code: str,
    language: str = "python",
    *,
    timeout: float = 30,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    **limits: Any,
) -> ExecResult:
    """Runs the code in a cage and returns what happened. Limits by name: `memory_mb=256`, `processes=10`, ...

    Works from anywhere, inside a running event loop too (where it blocks that loop: use `arun` there).
    """
    return shared_backend().execute_blocking(_request(code, language, timeout, stdin, env, limits))


async def arun(
    code: str,
    language: str = "python",
    *,
    timeout: float = 30,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    **limits: Any,
) -> ExecResult:
    """`run` for event loops."""
    return await shared_backend().execute(_request(code, language, timeout, stdin, env, limits))
