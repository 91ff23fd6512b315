"""Build and run one program, with separate results for the two steps, as other protocols report them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import BuildFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.judging.doubt import is_doubtful_timeout, run_alone
from warmcell.languages.registry import find_language

End = Literal["ended", "timeout", "memory", "output"]


@dataclass(frozen=True, slots=True)
class Step:
    """How a compiler or a program ended. `note` names the limit that ended it."""

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
    """`compile` is None for languages without that step, `run` is None if it failed."""

    compile: Step | None
    run: Step | None


async def build_and_run(
    service: Service, tenant: Tenant, request: ExecRequest, compile_timeout: float, patience: float
) -> Steps:
    """Build and run. Raises only for the caller's mistakes and our failures; outcomes of the program are returned."""
    is_compiled = find_language(str(request.language)).is_compiled
    async with service.run_slot(tenant, patience) as backend:
        if not is_compiled:
            return Steps(None, await _run_step(partial(backend.execute, request)))
        return await _build_then_run(backend, request, compile_timeout)


async def run_request(
    service: Service, tenant: Tenant, make: Callable[[], ExecRequest], compile_timeout: float, patience: float
) -> Steps:
    """`build_and_run`, but a program that cannot run, such as an empty one, is an outcome too."""
    try:
        return await build_and_run(service, tenant, service.apply_limits(make()), compile_timeout, patience)
    except InvalidRequest as error:
        if error.field != "code":
            raise
        return Steps(None, Step("ended", ExecResult(exit_code=1), error.message))


async def _build_then_run(backend: ProcessBackend, request: ExecRequest, compile_timeout: float) -> Steps:
    """The backend counts the compiler's time: a timer here would count the time without a processor too."""
    try:
        program = await backend.build(request, timeout=compile_timeout)
    except (BuildFailed, ExecutionTimeout, MemoryExceeded) as error:
        return Steps(_step_of_error(error), None)
    async with program:
        return Steps(Step("ended", ExecResult()), await _run_step(program.run))


async def _run_step(run: Callable[[], Awaitable[ExecResult]]) -> Step:
    """Run one step. If others may have delayed the program, run it once more, while no other such program runs."""
    ended = await _run_once(run)
    if isinstance(ended, ExecutionTimeout) and is_doubtful_timeout(ended):
        async with run_alone():
            ended = await _run_once(run)
    if isinstance(ended, SandboxError):
        return _step_of_error(ended)
    is_cut = ended.stdout_truncated or ended.stderr_truncated
    return Step("output", ended, "output limit exceeded") if is_cut else Step("ended", ended)


async def _run_once(run: Callable[[], Awaitable[ExecResult]]) -> ExecResult | SandboxError:
    try:
        return await run()
    except (ExecutionTimeout, MemoryExceeded) as error:
        return error


def _step_of_error(error: SandboxError) -> Step:
    result = getattr(error, "result", None) or ExecResult(exit_code=1)
    if isinstance(error, BuildFailed):
        return Step("ended", result)
    return Step("timeout" if isinstance(error, ExecutionTimeout) else "memory", result, error.message)
