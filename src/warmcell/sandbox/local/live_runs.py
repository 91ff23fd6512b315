"""`live=True`: exec, sh and run as programs of the live cage, with the same results and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.run_record import RunRecord
from warmcell.core.types import ExecRequest, ExecResult, Language
from warmcell.runner.not_started import NotStarted, command_refusal
from warmcell.sandbox.interface import RunOptions
from warmcell.sandbox.local.context import SandboxContext
from warmcell.sandbox.local.guests import ProcessGuest, command_line, no_live_cage
from warmcell.sandbox.local.live import LocalLive
from warmcell.sandbox.local.process import LocalProcess
from warmcell.sessions.streams import Beginning

#: Characters of a command in `processes()`.
_MAX_SHOWN = 200


class LiveRuns:
    """Runs what a guest would run in a cage of its own. Programs that a run leaves behind continue."""

    def __init__(self, context: SandboxContext, live: LocalLive) -> None:
        self._context, self._live = context, live
        self._output_bytes = context.limits.output_bytes

    @property
    def _guest(self) -> ProcessGuest:
        guest = self._context.guest
        if not isinstance(guest, ProcessGuest):
            raise no_live_cage(self._context.settings.backend_name)
        return guest

    async def command(self, argv: Sequence[str], options: RunOptions) -> ExecResult:
        request = self._guest.request(command_line(argv), Language.COMMAND, options)
        return await self._run(request, options, argv=argv, command=" ".join(argv), must_start=True)

    async def script(self, script: str, options: RunOptions) -> ExecResult:
        return await self.code(script, Language.COMMAND, options)

    async def code(self, code: str | bytes, language: Language | str, options: RunOptions) -> ExecResult:
        request = self._guest.request(code, language, options)
        program = await self._guest.live_program(request)
        if isinstance(program, ExecResult):
            return program
        shown = code if isinstance(code, str) else str(language)
        env = {**program.program.env, **request.env}
        return await self._run(request, options, argv=program.argv_in, command=shown, env=env, files=program.files)

    async def start_code(
        self, code: str, language: Language | str, options: RunOptions, **more: Any
    ) -> LocalProcess | ExecResult:
        """Starts the program and leaves it running. The result of its build if that failed."""
        request = self._guest.request(code, language, options)
        program = await self._guest.live_program(request)
        if isinstance(program, ExecResult):
            return program
        # Without a terminal Python would buffer the lines that an interactive caller waits for.
        env = {"PYTHONUNBUFFERED": "1", **program.program.env, **request.env}
        return await self._live.start(
            program.argv_in,
            options.cwd,
            command=code.strip()[:_MAX_SHOWN],
            env=env,
            files=program.files,
            timeout=request.timeout,
            ring=partial(Beginning, self._output_bytes),
            **more,
        )

    async def _run(
        self,
        request: ExecRequest,
        options: RunOptions,
        *,
        argv: Any,
        command: str,
        must_start: bool = False,
        **more: Any,
    ) -> ExecResult:
        with RunRecord("process", request) as record:
            process = await self._live.start(
                argv,
                options.cwd,
                command=command.strip()[:_MAX_SHOWN],
                stdin=bool(request.stdin_bytes),
                timeout=request.timeout,
                ring=partial(Beginning, self._output_bytes),
                **more,
            )
            # If a callback raises or the caller is cancelled. Does nothing if the process has ended.
            with on_error(process.kill_soon):
                # exec may have failed, which is known before any of the program's code runs.
                if must_start and process.start_failure:
                    raise command_refusal(argv[0], NotStarted(process.start_failure, argv[0]))
                record.result = await self._follow(process, request.stdin_bytes, options)
                return record.result

    async def _follow(self, process: LocalProcess, data: bytes, options: RunOptions) -> ExecResult:
        feeding = asyncio.ensure_future(_feed(process, data)) if data else None
        try:
            if options.follow is not None:
                return await options.follow(self._events(process))
            return await process.wait()
        finally:
            if feeding is not None:
                feeding.cancel()

    async def _events(self, process: LocalProcess) -> AsyncIterator[StreamEvent]:
        """Drops bytes past the cap; the result is marked as truncated."""
        left = {"stdout": self._output_bytes, "stderr": self._output_bytes}
        async for event in process.output():
            data = event.data[: left[event.stream]]
            left[event.stream] -= len(data)
            if data:
                yield OutputEvent(event.stream, data)
        yield ResultEvent(await process.wait())


async def _feed(process: LocalProcess, data: bytes) -> None:
    with suppress(InvalidRequest):  # it may exit without reading all of it
        await process.write(data)
    await process.close_stdin()
