"""`warmcell run`: one program, one sandbox, its output and its exit status."""

from __future__ import annotations

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.light import suppress
from warmcell.core.types import ExecRequest, ExecResult, Limits
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.pass_through import OutputLost, PassThrough, passed_on
from warmcell.interfaces.cli.source import Source, choose, guest_stdin, read_code, read_guest_stdin
from warmcell.interfaces.cli.voice import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from contextlib import AbstractContextManager
    from types import SimpleNamespace

    from warmcell.policy.model import SandboxPolicy


def run(arguments: Namespace | SimpleNamespace) -> int:
    """Checks everything, then runs it; returns the exit status."""
    code = options.text(arguments.code) if arguments.code is not None else None
    source = choose(arguments.target, arguments.source, code)
    policy = options.policy(arguments.allow_read, arguments.allow_write, arguments.allow_domain, arguments.policy)
    backend = _backend_name(arguments, source.language.backend, policy)
    request = _request(arguments, source, "recorded" if arguments.record else backend)
    doing = "compiling and running" if source.language.is_compiled else "running"
    progress = Progress(f"{doing} {source.language.name}")
    output = None if arguments.json else PassThrough(progress.stop)
    try:
        with audited(arguments.audit), progress:
            if backend == "process":
                outcome: ExecResult | SandboxError
                stdin = -1 if arguments.record else guest_stdin(source)
                outcome = _run_process(request, arguments.enforcer, policy, stdin, output)
            else:
                outcome = _run_by_name(backend, request, output)
    except SandboxError as error:
        outcome = error
    except OutputLost as lost:
        raise lost.error from None
    if arguments.record is not None:
        _record(arguments, request, outcome, backend, policy)
    from warmcell.interfaces.cli.render import finish  # not before it is needed: the run need not wait for it

    if output is None:
        return finish(outcome, True, _about(source, backend))
    _write_rest(output)
    return finish(outcome, False, is_printed=output.has_heard)


def _record(
    arguments: Namespace | SimpleNamespace,
    request: ExecRequest,
    outcome: ExecResult | SandboxError,
    backend: str,
    policy: SandboxPolicy | None,
) -> None:
    from warmcell.interfaces.recording import recorded, write

    enforcer = None if arguments.enforcer == "none" else arguments.enforcer
    write(arguments.record, recorded(request, outcome, backend=backend, enforcer=enforcer, policy=policy))


def audited(file: str | None) -> AbstractContextManager[object]:
    """Whatever happens is written to the file, where one was named."""
    if file is None:
        return suppress()
    from warmcell.observe.audit import AuditLog

    try:
        return AuditLog(file)
    except InvalidRequest as error:
        raise UsageError(f"--audit: {error.message.removeprefix('audit: ')}", error.hint) from None


def _write_rest(output: PassThrough) -> None:
    try:
        output.finish()
    except OutputLost as lost:
        raise lost.error from None


def _about(source: Source, backend: str) -> dict[str, str]:
    """Which language it was, and what runs it, as far as a toolchain says."""
    from warmcell.languages.config import ProcessConfig
    from warmcell.languages.registry import language_version

    name = source.language.name
    try:
        return {"language": name, "version": language_version(name, ProcessConfig()) if backend == "process" else ""}
    except SandboxError:  # there is none, and the outcome says so
        return {"language": name, "version": ""}


def _backend_name(arguments: Namespace | SimpleNamespace, usual: str, policy: SandboxPolicy | None) -> str:
    name: str = arguments.backend or usual
    if name != "process" and policy is not None:
        hint = "leave them out, or use --backend process"
        raise UsageError("--policy and the --allow-* options need the process backend", hint)
    if name != "process" and arguments.enforcer != "auto":
        raise UsageError("--enforcer needs the process backend", "leave it out, or use --backend process")
    return name


def _request(arguments: Namespace | SimpleNamespace, source: Source, backend: str) -> ExecRequest:
    timeout = options.seconds("--timeout", arguments.timeout)
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    output = options.whole_number("--max-output", arguments.max_output, 1 << 30)
    env = options.environment(arguments.env)
    code = read_code(source)
    try:
        return ExecRequest(
            source.language.name,
            code,
            timeout,
            # The process backend passes our stdin on as it comes; the others, and a recording, want all of it first.
            stdin=None if backend == "process" else read_guest_stdin(source, timeout),
            memory_limit_mb=memory,
            env=env,
            limits=None if output is None else Limits(output_bytes=output),
            args=tuple(map(options.text, arguments.args)),
        )
    except InvalidRequest as error:
        raise UsageError(error.message, error.hint) from None


def _run_process(
    request: ExecRequest, enforcer: str, policy: SandboxPolicy | None, stdin: int, output: PassThrough | None
) -> ExecResult:
    from warmcell.backends.process.backend import ProcessBackend
    from warmcell.languages.config import ProcessConfig

    backend = ProcessBackend(
        config=ProcessConfig(pool_size=0, pool_min=0),
        enforcer=None if enforcer == "none" else enforcer,
        policy=policy,
    )
    try:
        return backend.execute_blocking(request, stdin=stdin, listener=output)
    finally:
        backend.close()


def _run_by_name(name: str, request: ExecRequest, output: PassThrough | None) -> ExecResult:
    import asyncio

    from warmcell.backends.registry import get_backend

    async def once() -> ExecResult:
        backend = get_backend(name)
        stream = getattr(backend, "stream", None)  # another package's may have none
        try:
            if output is None or stream is None:
                return await backend.execute(request)
            return await passed_on(stream(request), output)
        finally:
            await backend.aclose()

    return asyncio.run(once())
