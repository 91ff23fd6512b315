"""The part of a sandbox that runs things to their end: commands, scripts, source text."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

from warmcell.backends.output_callbacks import Follow, OnText, following
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import ExecRequest, ExecResult, Language, check_text, check_timeout
from warmcell.sandbox.backend_adapters import language_for
from warmcell.sandbox.guest_config import Job
from warmcell.sandbox.living import LivingSandbox
from warmcell.sandbox.shell_words import checked_argv
from warmcell.workspace.workspace import AnyPath


class RunningSandbox(LivingSandbox):
    """The runs of `AsyncSandbox`, each in a cage of its own or, in a live sandbox, in the one that stays."""

    async def exec(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs one command, without a shell. `CommandNotFound` when the sandbox has none of that name.

        `on_stdout` and `on_stderr` get text as it comes, here and in all that runs something; they may be coroutine
        functions. One that raises ends the run.
        """
        argv = checked_argv(command, args)
        follow = following(on_stdout, on_stderr)
        return await self._run(functools.partial(self._ways().command, argv), cwd, stdin, timeout, follow)

    async def sh(
        self,
        script: str,
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs a shell script in the work directory. Nothing but files is kept from one call to the next."""
        follow = following(on_stdout, on_stderr)
        return await self.follow_sh(script, follow, cwd=cwd, stdin=stdin, timeout=timeout)

    async def follow_sh(
        self,
        script: str,
        follow: Follow | None,
        *,
        cwd: AnyPath | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """`sh` for who wants the very bytes: `follow` goes through the events of the run and returns its result."""
        ExecRequest(Language.COMMAND, check_text("script", script), 1.0)
        return await self._run(functools.partial(self._ways().script, script), cwd, stdin, timeout, follow)

    async def run(
        self,
        code: str | bytes,
        language: str = "python",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs source text in the work directory."""
        request = ExecRequest(language_for(self._backend_name, language), code, 1.0)
        follow = following(on_stdout, on_stderr)
        call = functools.partial(self._ways().code, code, request.language)
        return await self._run(call, None, stdin, timeout, follow)

    async def exec_python(
        self,
        code: str,
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs Python code in the work directory."""
        return await self.run(code, "python", stdin=stdin, timeout=timeout, on_stdout=on_stdout, on_stderr=on_stderr)

    async def exec_js(
        self,
        code: str,
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> ExecResult:
        """Runs JavaScript code in the work directory."""
        return await self.run(
            code, "javascript", stdin=stdin, timeout=timeout, on_stdout=on_stdout, on_stderr=on_stderr
        )

    async def _run(
        self,
        call: Callable[[Job], Awaitable[ExecResult]],
        cwd: AnyPath | None,
        stdin: str | bytes | None,
        timeout: float | None,
        follow: Follow | None,
    ) -> ExecResult:
        seconds = self._settings["timeout"] if timeout is None else check_timeout(timeout)
        if stdin is not None and not isinstance(stdin, str | bytes):
            raise InvalidRequest(f"must be text or bytes, not {type(stdin).__name__}", field="stdin")

        async def run() -> ExecResult:
            return await call(Job(await self._guest_cwd(cwd), stdin, seconds, follow))

        return await self._operations.run(run())
