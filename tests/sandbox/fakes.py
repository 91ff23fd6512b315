"""A guest that runs nothing: it notes what it was asked and does what the test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from warmcell.core.errors import CommandNotFound
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecResult, Language
from warmcell.sandbox.interface import RunOptions
from warmcell.sandbox.local.guest_config import GuestConfig


class FakeGuest:
    """`on_run` is called with (what, job) and may change files; `delay` keeps every run busy for a while."""

    def __init__(self, config: GuestConfig) -> None:
        self.config = config
        self.calls: list[tuple[str, Any, RunOptions]] = []
        self.delay = 0.0
        self._woken = asyncio.Event()
        self.cancelled = 0
        self.closed = 0
        self.on_run: Callable[[str], None] = lambda what: None

    async def command(self, argv: Sequence[str], job: RunOptions) -> ExecResult:
        if argv[0] == "no-such-command":
            raise CommandNotFound(argv[0])
        return await self._run("command", list(argv), job)

    async def script(self, script: str, job: RunOptions) -> ExecResult:
        return await self._run("script", script, job)

    async def code(self, code: str | bytes, language: Language, job: RunOptions) -> ExecResult:
        return await self._run(f"code:{language}", code, job)

    async def _run(self, kind: str, what: Any, job: RunOptions) -> ExecResult:
        self.calls.append((kind, what, job))
        try:
            async with asyncio.timeout(self.delay):
                await self._woken.wait()
        except TimeoutError:
            pass  # the delay is over
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.on_run(what)
        return ExecResult(stdout=f"{kind} {what}")

    def wake(self) -> None:
        """Ends the delay of every run at once, and of those to come."""
        self._woken.set()

    async def tools(self) -> list[str]:
        return ["fake"]

    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(("python", "command"), "none", EnforcedLimits(network_isolation=True))

    async def aclose(self) -> None:
        self.closed += 1


class Factory:
    """Hands out fake guests and keeps them for the test to look at."""

    def __init__(self) -> None:
        self.made: list[FakeGuest] = []

    def __call__(self, backend: str, config: GuestConfig) -> FakeGuest:
        self.made.append(FakeGuest(config))
        return self.made[-1]

    @property
    def guest(self) -> FakeGuest:
        return self.made[-1]
