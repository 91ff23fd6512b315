"""FakeBackend: a backend that runs nothing and answers from a script, for your own tests.

    backend = FakeBackend(["42\\n", FakeTimeout(stdout="so far")])
    await backend.execute(request)      # ExecResult(stdout="42\\n")
    await backend.execute(request)      # raises ExecutionTimeout with the partial output
    backend.requests                    # what was asked for

It keeps the whole contract of `SandboxBackend`: typed errors, deadlines, cancellation, closing.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from warmcell.core.errors import (
    BackendUnavailable,
    ExecutionFailed,
    ExecutionTimeout,
    InvalidRequest,
    MemoryExceeded,
)
from warmcell.core.types import (
    BackendCapabilities,
    Enforced,
    EnforcedLimits,
    ExecRequest,
    ExecResult,
)
from warmcell.languages.registry import canonical, language_names


@dataclass(frozen=True, slots=True)
class FakeTimeout:
    """The guest overstays: after the request's timeout (or at once) `ExecutionTimeout` is raised."""

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
    """Answers with `reply` after `seconds`; a delay past the request's timeout becomes `ExecutionTimeout`."""

    seconds: float
    reply: Reply = ""


@dataclass(frozen=True, slots=True)
class _Rule:
    language: str | None
    code: re.Pattern[str] | None
    reply: Reply

    def matches(self, request: ExecRequest) -> bool:
        if self.language is not None and canonical(request.language) != self.language:
            return False
        text = request.code if isinstance(request.code, str) else request.code.decode("latin-1")
        return self.code is None or self.code.search(text) is not None


_ENFORCED = Enforced(isolation_class="fake")

#: What a script may hold. Text is a successful run that printed it.
Answer = str | ExecResult | BaseException | FakeTimeout | FakeMemoryExceeded | FakeDelay
Reply = Answer | Callable[[ExecRequest], Answer]


@dataclass(frozen=True, slots=True)
class _Outcome:
    delay: float
    verdict: ExecResult | BaseException


class FakeBackend:
    """Answers by rule (`when`), else from the queue, else by the callable; an exhausted script is an error.

    Without any script every request succeeds and prints nothing. `capabilities` says honestly that nothing is
    enforced, because nothing runs; pass your own to test how your code reacts to a stronger or weaker host.
    """

    def __init__(
        self,
        script: Iterable[Reply] | Callable[[ExecRequest], Answer] = (),
        *,
        latency: float = 0.0,
        languages: Iterable[str] | None = None,
        capabilities: BackendCapabilities | None = None,
        name: str = "fake",
    ) -> None:
        self.requests: list[ExecRequest] = []
        self._answer: Callable[[ExecRequest], Answer] | None = script if callable(script) else None
        self._queue: deque[Reply] = deque(() if callable(script) else script)
        self._is_scripted = bool(self._queue)
        self._rules: list[_Rule] = []
        self._latency = latency
        self._name = name
        self._closed = False
        known = tuple(canonical(item) for item in (language_names() if languages is None else languages))
        self._capabilities = capabilities or BackendCapabilities(known, "fake", EnforcedLimits())

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_closed(self) -> bool:
        return self._closed

    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def reply(self, *replies: Reply) -> FakeBackend:
        """Adds to the queue."""
        self._queue.extend(replies)
        self._is_scripted = True
        return self

    def when(self, reply: Reply, *, language: str | None = None, code: str | None = None) -> FakeBackend:
        """Answers with `reply` whenever the language is this one and the regular expression `code` is found."""
        pattern = None if code is None else re.compile(code)
        self._rules.append(_Rule(None if language is None else canonical(language), pattern, reply))
        return self

    async def execute(self, request: ExecRequest) -> ExecResult:
        outcome = self._decide(request)
        await asyncio.sleep(outcome.delay)
        return _deliver(outcome)

    def execute_blocking(self, request: ExecRequest, *, cancel: int = -1, stdin: int = -1) -> ExecResult:
        """The same without an event loop, as `ProcessBackend` has it. What comes on `stdin` is recorded as given."""
        if stdin >= 0:
            with os.fdopen(os.dup(stdin), "rb") as source:
                request = replace(request, stdin=source.read())
        outcome = self._decide(request)
        time.sleep(outcome.delay)
        return _deliver(outcome)

    async def aclose(self) -> None:
        self._closed = True

    def close(self) -> None:
        self._closed = True

    def _decide(self, request: ExecRequest) -> _Outcome:
        if self._closed:
            raise BackendUnavailable(f"{self._name}: the backend is closed", hint="make a new FakeBackend")
        if canonical(request.language) not in self._capabilities.supported_languages:
            raise InvalidRequest(f"{self._name} does not run {request.language}", field="language")
        self.requests.append(request)
        reply = self._next_reply(request)
        answer = reply(request) if callable(reply) else reply
        return _outcome(answer, request, self._latency)

    def _next_reply(self, request: ExecRequest) -> Reply:
        for rule in self._rules:
            if rule.matches(request):
                return rule.reply
        if self._queue:
            return self._queue.popleft()
        if self._answer is not None:
            return self._answer
        if self._is_scripted or self._rules:
            raise ExecutionFailed(
                f"{self._name}: no reply is left for request {len(self.requests)} ({request.language})",
                hint="add one with reply(...) or when(...)",
            )
        return ""


def _outcome(answer: Answer, request: ExecRequest, delay: float) -> _Outcome:
    """Pure: what an answer of the script means for this request."""
    if isinstance(answer, FakeDelay):
        inner = answer.reply(request) if callable(answer.reply) else answer.reply
        return _outcome(inner, request, delay + answer.seconds)
    if delay >= request.timeout:
        answer, delay = FakeTimeout(), request.timeout
    if isinstance(answer, FakeTimeout):
        partial = _killed(answer.stdout, answer.stderr, request.timeout)
        return _Outcome(request.timeout if answer.wait else delay, ExecutionTimeout(request.timeout, partial))
    if isinstance(answer, FakeMemoryExceeded):
        partial = _killed(answer.stdout, answer.stderr, delay)
        return _Outcome(delay, MemoryExceeded(request.memory_limit_mb or answer.limit_mb, partial))
    if isinstance(answer, str):
        return _Outcome(delay, ExecResult(stdout=answer, duration=delay, enforced=_ENFORCED))
    if isinstance(answer, ExecResult | BaseException):
        return _Outcome(delay, answer)
    raise TypeError(f"a FakeBackend cannot answer with {type(answer).__name__}")


def _killed(stdout: str, stderr: str, duration: float) -> ExecResult:
    return ExecResult(stdout=stdout, stderr=stderr, exit_code=137, signal=9, duration=duration, enforced=_ENFORCED)


def _deliver(outcome: _Outcome) -> ExecResult:
    if isinstance(outcome.verdict, BaseException):
        raise outcome.verdict
    return outcome.verdict
