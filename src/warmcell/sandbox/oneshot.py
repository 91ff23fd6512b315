"""`run` and `arun`: one call, one result, on a backend that the whole process shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmcell.backends.shared import shared_backend, shared_backend_named
from warmcell.core.contracts import SandboxBackend
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
    backend: str | SandboxBackend | None = None,
    **limits: Any,
) -> ExecResult:
    """Runs the code in a cage and returns the result. Limits by name: `memory_mb=256`, `processes=10`, ...

    `backend` is a name such as "ray", of a backend that is then shared and closed at exit, or a backend of yours.
    In a running event loop it works but blocks the loop: use `arun` there.
    """
    request = _request(code, language, timeout, stdin, env, limits)
    if backend is None:
        return shared_backend().execute_blocking(request)
    found: Any = shared_backend_named(backend) if isinstance(backend, str) else backend
    if hasattr(found, "execute_blocking"):
        return found.execute_blocking(request)  # type: ignore[no-any-return]
    from warmcell.lifetime.portal import portal

    result: ExecResult = portal.call(found.execute, request)
    return result


async def arun(
    code: str,
    language: str = "python",
    *,
    timeout: float = 30,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    backend: str | SandboxBackend | None = None,
    **limits: Any,
) -> ExecResult:
    """`run` for event loops."""
    found = shared_backend_named(backend) if isinstance(backend, str) else backend or shared_backend()
    return await found.execute(_request(code, language, timeout, stdin, env, limits))
