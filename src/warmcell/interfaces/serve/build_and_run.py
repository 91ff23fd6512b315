"""One program in two steps that are told apart: compiled where its language is, then run. What other protocols show."""

from __future__ import annotations

import asyncio
from typing import Literal

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import BuildFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.languages.registry import find_language

End = Literal["ended", "timeout", "memory"]


@dataclass(frozen=True, slots=True)
class Step:
    """How a compiler or a program ended. `note` says what a limit had to do with it."""

    end: End
    result: ExecResult
    note: str = ""

    @property
    def is_success(self) -> bool:
        return self.end == "ended" and self.result.exit_code == 0

    @property
    def stderr(self) -> str:
        if not self.note:
            return self.result.stderr
        separator = "\n" if self.result.stderr and not self.result.stderr.endswith("\n") else ""
        return f"{self.result.stderr}{separator}{self.note}\n"


@dataclass(frozen=True, slots=True)
class Steps:
    """`compile` is None for languages without that step, `run` where it failed."""

    compile: Step | None
    run: Step | None


async def build_and_run(
    service: Service, tenant: Tenant, asked: ExecRequest, compile_timeout: float, patience: float
) -> Steps:
    """Raises what is no outcome of the program: the caller's mistakes, and our failures."""
    is_compiled = find_language(str(asked.language)).is_compiled
    async with service.turn(tenant, patience) as backend:
        if not is_compiled:
            return Steps(None, await _step(backend.execute(asked)))
        return await _compiled(backend, asked, compile_timeout)


def refused_code(error: InvalidRequest) -> Steps | None:
    """A program that nothing can run (it is empty, say) failed, and nobody else did: None for any other field."""
    if error.field != "code":
        return None
    return Steps(None, Step("ended", ExecResult(exit_code=1), error.message))


async def _compiled(backend: ProcessBackend, asked: ExecRequest, compile_timeout: float) -> Steps:
    try:
        async with asyncio.timeout(compile_timeout):
            program = await backend.build(asked)
    except TimeoutError:
        note = f"compilation timed out after {compile_timeout:g} s"
        return Steps(Step("timeout", ExecResult(duration=compile_timeout), note), None)
    except (BuildFailed, ExecutionTimeout, MemoryExceeded) as error:
        return Steps(_stopped(error), None)
    async with program:
        return Steps(Step("ended", ExecResult()), await _step(program.run()))


async def _step(run: object) -> Step:
    try:
        return Step("ended", await run)  # type: ignore[misc]
    except (ExecutionTimeout, MemoryExceeded) as error:
        return _stopped(error)


def _stopped(error: SandboxError) -> Step:
    result = getattr(error, "result", None) or ExecResult(exit_code=1)
    if isinstance(error, BuildFailed):
        return Step("ended", result)
    return Step("timeout" if isinstance(error, ExecutionTimeout) else "memory", result, error.message)
