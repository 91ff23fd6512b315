"""`live=True`: exec, sh and run as programs of the live cage, with the results and errors that they always have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.run_record import RunRecord
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.runner.not_started import NotStarted
from warmcell.sandbox.backend_adapters import ProcessGuest
from warmcell.sandbox.guest_config import Job
from warmcell.sandbox.shell_words import command_line
from warmcell.sessions.rings import Beginning

if TYPE_CHECKING:
    from warmcell.sandbox.live import LiveSide
    from warmcell.sandbox.processes import AsyncProcess

#: Of a command, where it is listed.
_MOST_SHOWN = 200


class LiveRuns:
    """In place of the guest's own ways, for one sandbox. What a run leaves running goes on."""

    def __init__(self, guest: ProcessGuest, side: LiveSide, output_bytes: int) -> None:
        self._guest, self._side, self._output_bytes = guest, side, output_bytes

    async def command(self, argv: Sequence[str], job: Job) -> ExecResult:
        request = self._guest.request(command_line(argv), Language.COMMAND, job)
        return await self._recorded(request, job, argv=argv, command=" ".join(argv), must_start=True)

    async def script(self, script: str, job: Job) -> ExecResult:
        return await self.code(script, Language.COMMAND, job)

    async def code(self, code: str | bytes, language: Language | str, job: Job) -> ExecResult:
        request = self._guest.request(code, language, job)
        program = await self._guest.live_program(request)
        if isinstance(program, ExecResult):
            return program
        shown = code if isinstance(code, str) else str(language)
        env = {**program.program.env, **request.env}
        return await self._recorded(request, job, argv=program.argv_in, command=shown, env=env, files=program.files)

    async def begin_code(
        self, code: str, language: Language | str, job: Job, **options: Any
    ) -> AsyncProcess | ExecResult:
        """The same without waiting for its end; the result at once where it does not compile."""
        request = self._guest.request(code, language, job)
        program = await self._guest.live_program(request)
        if isinstance(program, ExecResult):
            return program
        # Whoever talks with a program waits for its lines; where there is no terminal, Python would keep them back.
        env = {"PYTHONUNBUFFERED": "1", **program.program.env, **request.env}
        return await self._side.start(
            program.argv_in,
            job.cwd,
            command=code.strip()[:_MOST_SHOWN],
            env=env,
            files=program.files,
            timeout=request.timeout,
            ring=partial(Beginning, self._output_bytes),
            **options,
        )

    async def _recorded(self, request: ExecRequest, job: Job, **options: Any) -> ExecResult:
        with RunRecord("process", request) as record:
            record.result = await self._run(request, job, **options)
            return record.result

    async def _run(
        self, request: ExecRequest, job: Job, *, argv: Any, command: str, must_start: bool = False, **options: Any
    ) -> ExecResult:
        process = await self._side.start(
            argv,
            job.cwd,
            command=command.strip()[:_MOST_SHOWN],
            stdin=bool(request.stdin_bytes),
            timeout=request.timeout,
            ring=partial(Beginning, self._output_bytes),
            **options,
        )
        try:
            if must_start:
                _check_started(process, argv[0])
            return await self._through(process, request.stdin_bytes, job)
        except BaseException:
            process.kill_soon()  # a callback that raised, a caller who gave up; or it has ended by itself
            raise

    async def _through(self, process: AsyncProcess, data: bytes, job: Job) -> ExecResult:
        feeding = asyncio.ensure_future(_feed(process, data)) if data else None
        try:
            if job.follow is not None:
                return await job.follow(self._events(process))
            return await process.wait()
        finally:
            if feeding is not None:
                feeding.cancel()

    async def _events(self, process: AsyncProcess) -> AsyncIterator[StreamEvent]:
        """Bytes past the cap are not delivered, and the result says truncated."""
        left = {"stdout": self._output_bytes, "stderr": self._output_bytes}
        async for event in process.output():
            data = event.data[: left[event.stream]]
            left[event.stream] -= len(data)
            if data:
                yield OutputEvent(event.stream, data)
        yield ResultEvent(await process.wait())


async def _feed(process: AsyncProcess, data: bytes) -> None:
    with suppress(InvalidRequest):  # it need not read all of it
        await process.write(data)
    await process.close_stdin()


def _check_started(process: AsyncProcess, name: str) -> None:
    """What exec said, before any of the program's code ran."""
    if process.start_failure:
        from warmcell.backends.process.backend import command_refusal

        raise command_refusal(name, NotStarted(process.start_failure, name))
