"""`warmcell run`: runs one program in a sandbox and exits with its status."""

from __future__ import annotations

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.light import suppress
from warmcell.core.types import ExecRequest, ExecResult, Limits
from warmcell.interfaces.cli import options
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.messages import PassThrough, Progress, relay
from warmcell.interfaces.cli.source import Source, choose, guest_stdin, read_code, read_guest_stdin
from warmcell.languages.registry import find_language

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from contextlib import AbstractContextManager
    from types import SimpleNamespace
    from typing import Any

    from warmcell.policy.model import SandboxPolicy

    Arguments = Namespace | SimpleNamespace


def run(arguments: Arguments) -> int:
    """Check the options, run the program and return the exit status."""
    code = options.text(arguments.code) if arguments.code is not None else None
    is_default = arguments.target is None
    source = _default_source(arguments) if is_default else choose(arguments.target, arguments.source, code)
    allowed = (arguments.allow_read, arguments.allow_write, arguments.allow_domain)
    policy = options.policy(*allowed, arguments.policy, arguments.gpu)
    backend = _backend_name(arguments, source, policy)
    _check_image_options(arguments, source, backend)
    keeps_apart = _has_separate_changes(arguments, source, backend)
    request = _request(arguments, source, "recorded" if arguments.record else backend)
    if arguments.record is not None:
        from warmcell.interfaces.recording import open_recording

        open_recording(arguments.record).close()  # nothing runs if it cannot be recorded
    doing = "compiling and running" if source.language.is_compiled else "running"
    progress = Progress(f"{doing} {source.language.name}")
    output = None if arguments.json else PassThrough(progress.stop)
    changes: list[dict[str, Any]] = []
    reviewed: list[int] = []
    try:
        with open_audit(arguments.audit), progress:
            if backend == "process":
                outcome: ExecResult | SandboxError
                stdin = -1 if arguments.record else guest_stdin(source)
                if keeps_apart:
                    outcome = _run_with_changes(request, arguments, policy, stdin, output, changes, reviewed)
                else:
                    outcome = _run_process(request, arguments, policy, stdin, output)
            else:
                outcome = _run_by_name(backend, request, output)
    except SandboxError as error:
        outcome = error
    if arguments.record is not None:
        _record(arguments, request, outcome, backend=backend, policy=policy)
    from warmcell.interfaces.cli.render import finish  # imported late, so that the run starts sooner

    if output is None:
        about: dict[str, Any] = {**_about(source, "image" if arguments.image else backend)}
        status = finish(outcome, True, about | ({"changes": changes} if keeps_apart else {}))
    else:
        output.finish()
        status = finish(outcome, False, is_printed=output.has_output)
    return status or (reviewed[0] if reviewed else status)


def _has_separate_changes(arguments: Arguments, source: Source, backend: str) -> bool:
    if not (arguments.changes or arguments.commit or arguments.discard or arguments.patch):
        return False
    from warmcell.interfaces.cli.review_changes import is_wanted

    for name in ("record", "image"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} and --changes cannot be combined", "leave one of the two out")
    if backend != "process":
        raise _needs_process("--changes needs", source)
    return is_wanted(arguments)


def _default_source(arguments: Arguments) -> Source:
    """The image's own ENTRYPOINT and CMD. The text is for records of the run only."""
    if arguments.image is None or arguments.code is not None:
        raise UsageError(
            "the following arguments are required: LANGUAGE|FILE", "for example 'warmcell run python -c CODE'"
        )
    return Source(find_language("command"), " ".join(["ENTRYPOINT", *arguments.args]))


def _check_image_options(arguments: Arguments, source: Source, backend: str) -> None:
    if arguments.user is not None and arguments.image is None:
        raise UsageError("--user needs --image", "leave it out, or name an image")
    if arguments.image is not None and backend != "process":
        raise _needs_process("--image needs", source)
    if arguments.image is not None and arguments.record is not None:
        raise UsageError("--record and --image cannot be combined", "leave one of the two out")


def _record(arguments: Arguments, request: ExecRequest, outcome: ExecResult | SandboxError, **about: Any) -> None:
    from warmcell.interfaces.recording import make_recording, write

    enforcer = None if arguments.enforcer == "none" else arguments.enforcer
    write(arguments.record, make_recording(request, outcome, enforcer=enforcer, **about))


def open_audit(file: str | None) -> AbstractContextManager[object]:
    """Write events to the audit file, if one was named."""
    if file is None:
        return suppress()
    from warmcell.observe.audit import AuditLog

    try:
        return AuditLog(file)
    except InvalidRequest as error:
        raise UsageError(f"--audit: {error.message.removeprefix('audit: ')}", error.hint) from None


def _about(source: Source, backend: str) -> dict[str, str]:
    from warmcell.languages.config import ProcessConfig
    from warmcell.languages.registry import language_version

    name = source.language.name
    try:
        return {"language": name, "version": language_version(name, ProcessConfig()) if backend == "process" else ""}
    except SandboxError:  # not installed; the outcome says so
        return {"language": name, "version": ""}


def _backend_name(arguments: Arguments, source: Source, policy: SandboxPolicy | None) -> str:
    name: str = arguments.backend or source.language.backend
    if name != "process" and policy is not None:
        raise _needs_process("--policy, --gpu and the --allow-* options need", source)
    if name != "process" and arguments.enforcer != "auto":
        raise _needs_process("--enforcer needs", source)
    return name


def _needs_process(options: str, source: Source) -> UsageError:
    """The refusal of options that other backends do not have. The process backend does not run every language."""
    name, usual = source.language.name, source.language.backend
    remedy = ", or use --backend process" if usual == "process" else f": {name} runs in the {usual} backend"
    return UsageError(f"{options} the process backend", f"leave that out{remedy}")


def _request(arguments: Arguments, source: Source, backend: str) -> ExecRequest:
    timeout = options.seconds("--timeout", arguments.timeout)
    memory = options.whole_number("--memory", arguments.memory, 1 << 20)
    output = options.whole_number("--max-output", arguments.max_output, 1 << 30)
    env = options.environment(arguments.env)
    return ExecRequest(
        source.language.name,
        read_code(source),
        timeout,
        # The process backend streams our stdin; other backends and recordings need all of it first.
        stdin=None if backend == "process" else read_guest_stdin(source, timeout),
        memory_limit_mb=memory,
        env=env,
        limits=None if output is None else Limits(output_bytes=output),
        args=tuple(map(options.text, arguments.args)),
    )


def _run_process(
    request: ExecRequest,
    arguments: Arguments,
    policy: SandboxPolicy | None,
    stdin: int,
    output: PassThrough | None,
    **others: Any,
) -> ExecResult:
    from warmcell.backends.process.backend import ProcessBackend
    from warmcell.languages.config import ProcessConfig

    backend = ProcessBackend(
        config=ProcessConfig(pool_size=0, pool_min=0),
        enforcer=None if arguments.enforcer == "none" else arguments.enforcer,
        policy=policy,
        image=arguments.image,
        user=arguments.user,
        **others,
    )
    try:
        if arguments.target is None:
            return backend.execute_entrypoint_blocking(request, stdin=stdin, listener=output)
        return backend.execute_blocking(request, stdin=stdin, listener=output)
    finally:
        backend.close()


def _run_with_changes(
    request: ExecRequest,
    arguments: Arguments,
    policy: SandboxPolicy | None,
    stdin: int,
    output: PassThrough | None,
    changes: list[dict[str, Any]],
    reviewed: list[int],
) -> ExecResult:
    """Run the program with the current directory at its own path, and review what it changed there.

    `changes` is filled for JSON, with the changes as they were before the review; `reviewed` with its exit status.
    """
    import os

    from warmcell.changes.layer import ChangeLayer
    from warmcell.core.records import replace
    from warmcell.interfaces.cli.review_changes import review, to_plain
    from warmcell.policy.model import AccessMode, AllowedPath
    from warmcell.policy.resolve import DEFAULT_POLICY
    from warmcell.workspace.mount_points import guest_work_path
    from warmcell.workspace.root import Root

    if arguments.enforcer == "none":
        raise UsageError("--changes needs a cage", "leave --enforcer out")
    here = guest_work_path("host", os.getcwd())
    layer = ChangeLayer(here, here, resume=True, may_mount=arguments.enforcer in ("auto", "native"))
    try:
        merged = Root(here, descriptor=layer.descriptor)
        source = layer.copy_path if layer.overlay is None else here
        allowed = AllowedPath(source, AccessMode.READ_WRITE, here)
        policy = policy or DEFAULT_POLICY
        policy = replace(policy, allowed_paths=(*policy.allowed_paths, allowed))
        others = {"work_path": here, "has_tools": policy.allow_process_spawn, "overlay": layer.overlay}
        if not arguments.discard:
            layer.keep_if_killed()  # also by a signal, as of a closed terminal
        try:
            return _run_process(request, arguments, policy, stdin, output, **others)
        finally:
            try:
                if output is not None:
                    output.finish()
                else:
                    changes += map(to_plain, layer.changes())
            finally:  # also if the output is not read: what is not reviewed would be removed
                reviewed.append(review(layer, merged, arguments))
                merged.close()
    finally:
        layer.close()


def _run_by_name(name: str, request: ExecRequest, output: PassThrough | None) -> ExecResult:
    import asyncio

    from warmcell.backends.registry import get_backend

    async def once() -> ExecResult:
        backend = get_backend(name)
        stream = getattr(backend, "stream", None)  # optional for backends of other packages
        try:
            if output is None or stream is None:
                return await backend.execute(request)
            return await relay(stream(request), output)
        finally:
            await backend.aclose()

    return asyncio.run(once())
