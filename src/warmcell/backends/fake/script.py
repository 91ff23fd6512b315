"""The replies that a fake's script may contain, and their outcome for a request. Pure module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from warmcell.core.errors import ExecutionTimeout, MemoryExceeded, SandboxError
from warmcell.core.types import MIB, EffectiveLimits, Enforced, ExecRequest, ExecResult, Usage
from warmcell.runner.outcome import text_of
from warmcell.runner.streams import Capture

_KILLED = 137
_ENFORCED = Enforced(isolation_class="fake")


@dataclass(frozen=True, slots=True)
class FakeGuest:
    """A program that prints, runs for `seconds`, uses memory and processor time, leaves `files`, and exits.

    The limits of the request apply as to a real guest: the first one that it exceeds ends it.
    """

    stdout: str | bytes = b""
    stderr: str | bytes = b""
    exit_code: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mb: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FakeTimeout:
    """The guest exceeds the timeout: raises `ExecutionTimeout`, after the timeout if `wait`, otherwise at once."""

    stdout: str = ""
    stderr: str = ""
    wait: bool = False


@dataclass(frozen=True, slots=True)
class FakeMemoryExceeded:
    """The guest uses too much memory. The limit is the request's, or `limit_mb`."""

    stdout: str = ""
    stderr: str = ""
    limit_mb: int = 512


@dataclass(frozen=True, slots=True)
class FakeDelay:
    """Answers with `reply` after `seconds`. A delay past the request's timeout becomes `ExecutionTimeout`."""

    seconds: float
    reply: Reply = ""


#: What a script may contain. A string is a successful run that printed it.
Answer = str | ExecResult | BaseException | FakeGuest | FakeTimeout | FakeMemoryExceeded | FakeDelay
Reply = Answer | Callable[[ExecRequest], Answer]


@dataclass(frozen=True, slots=True)
class FakeOutcome:
    """The result or error of a request, and the delay before it. `is_scripted`: returned as the script has it."""

    delay: float
    verdict: ExecResult | BaseException
    is_scripted: bool = True

    @property
    def output(self) -> ExecResult | None:
        """The result, or the partial result of an error."""
        found = self.verdict if isinstance(self.verdict, ExecResult) else getattr(self.verdict, "result", None)
        return found if isinstance(found, ExecResult) else None


def resolve_reply(reply: Reply, request: ExecRequest, limits: EffectiveLimits, delay: float = 0.0) -> FakeOutcome:
    """The outcome of a reply under these limits, `delay` seconds late."""
    answer = reply(request) if callable(reply) else reply
    if isinstance(answer, FakeDelay):
        return resolve_reply(answer.reply, request, limits, delay + answer.seconds)
    if delay >= request.timeout:
        answer, delay = FakeTimeout(), request.timeout
    match answer:
        case str():
            return _run_guest(FakeGuest(answer, seconds=delay), request, limits)
        case FakeGuest():
            return _run_guest(replace(answer, seconds=answer.seconds + delay), request, limits)
        case FakeTimeout():
            partial = _partial_result(FakeGuest(answer.stdout, answer.stderr), request.timeout, limits)
            return FakeOutcome(request.timeout if answer.wait else delay, ExecutionTimeout(request.timeout, partial))
        case FakeMemoryExceeded():
            limit = request.memory_limit_mb or answer.limit_mb
            partial = _partial_result(FakeGuest(answer.stdout, answer.stderr), delay, limits)
            return FakeOutcome(delay, MemoryExceeded(limit, partial))
        case ExecResult():
            return FakeOutcome(delay, _cap_output(answer, limits.output_bytes))
        case BaseException():
            return FakeOutcome(delay, answer)
    raise TypeError(f"a FakeBackend cannot answer with {type(answer).__name__}")


def _run_guest(guest: FakeGuest, request: ExecRequest, limits: EffectiveLimits) -> FakeOutcome:
    """Ends like a real guest: by itself, or by the first limit that it exceeds."""
    files: dict[str, Any] = {**request.files, **guest.files}
    guest = replace(guest, files={path: files[path] for path in request.fetch_files if path in files})
    ends: list[tuple[float, SandboxError]] = []
    if guest.memory_mb > limits.memory_mb:
        ends.append((0.0, MemoryExceeded(limits.memory_mb, _partial_result(guest, 0.0, limits))))
    if limits.cpu_seconds is not None and guest.cpu_seconds > limits.cpu_seconds:
        partial = _partial_result(guest, limits.cpu_seconds, limits)
        ends.append((limits.cpu_seconds, ExecutionTimeout(limits.cpu_seconds, partial, clock="cpu")))
    if guest.seconds >= request.timeout:
        partial = _partial_result(guest, request.timeout, limits)
        ends.append((request.timeout, ExecutionTimeout(request.timeout, partial)))
    if ends:
        return FakeOutcome(*min(ends, key=lambda end: end[0]))
    return FakeOutcome(guest.seconds, _result(guest, guest.seconds, limits, guest.exit_code), is_scripted=False)


def _partial_result(guest: FakeGuest, seconds: float, limits: EffectiveLimits) -> ExecResult:
    return replace(_result(guest, seconds, limits, _KILLED), signal=9)


def _result(guest: FakeGuest, seconds: float, limits: EffectiveLimits, exit_code: int) -> ExecResult:
    stdout, stderr = (
        item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
        for item in (guest.stdout, guest.stderr)
    )
    memory = min(guest.memory_mb, limits.memory_mb) * MIB
    result = ExecResult(
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        exit_code=exit_code,
        duration=seconds,
        usage=Usage(min(guest.cpu_seconds, seconds), seconds, memory),
        enforced=_ENFORCED,
        files=guest.files,
    )
    return _cap_output(result, limits.output_bytes)


def _cap_output(result: ExecResult, most: int) -> ExecResult:
    for name in ("stdout", "stderr"):
        capture = Capture(most)
        capture.add(getattr(result, f"{name}_bytes"))
        if capture.total > most:
            text, kept = text_of(capture)
            changes: dict[str, Any] = {name: text, f"{name}_bytes": kept, f"{name}_truncated": True}
            result = replace(result, **changes)
    return result
