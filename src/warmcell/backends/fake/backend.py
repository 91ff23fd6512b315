"""FakeBackend: a backend that runs nothing and answers from a script, for your own tests.

    backend = FakeBackend(["42\\n", FakeGuest(stdout="so far", seconds=60)])
    await backend.execute(request)      # ExecResult(stdout="42\\n")
    await backend.execute(request)      # raises ExecutionTimeout with the partial output, after the request's timeout
    backend.requests                    # every request so far

It implements the whole contract of `SandboxBackend`: typed errors, limits, capped output, a queue, cancellation,
closing. `tests/contract` runs against it as against the real backends.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from warmcell.backends.base import BackendBase
from warmcell.backends.built import Program
from warmcell.backends.fake.script import Answer, FakeOutcome, Reply, resolve_reply
from warmcell.backends.streaming import read_descriptor, refuse_descriptor, stream
from warmcell.core.errors import BackendUnavailable, BuildFailed, ExecutionFailed, InvalidRequest
from warmcell.core.output_events import StreamEvent
from warmcell.core.run_record import RunRecord
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult, Limits
from warmcell.languages.registry import canonical, language_names
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.runner.listening import Listener, deliver_result
from warmcell.workspace.private_directory import check_room


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


class FakeBackend(BackendBase):
    """Answers by rule (`when`), then from the queue, then by the callable; an exhausted script is an error.

    Without a script every request succeeds and prints nothing. `limits` caps what requests may ask for, like those of
    a policy; `max_concurrency` and `queue_timeout` are as in `ProcessConfig`. By default `capabilities` reports that
    nothing is enforced; pass your own to test how your code reacts to a stronger or weaker host.
    """

    def __init__(
        self,
        script: Iterable[Reply] | Callable[[ExecRequest], Answer] = (),
        *,
        latency: float = 0.0,
        languages: Iterable[str] | None = None,
        capabilities: BackendCapabilities | None = None,
        limits: Limits | None = None,
        max_concurrency: int = 128,
        queue_timeout: float = 60,
        name: str = "fake",
    ) -> None:
        self.requests: list[ExecRequest] = []
        self._answer: Callable[[ExecRequest], Answer] | None = script if callable(script) else None
        self._queue: deque[Reply] = deque(() if callable(script) else script)
        self._is_scripted = bool(self._queue)
        self._rules: list[_Rule] = []
        self._latency = latency
        self._policy = SandboxPolicy(limits=limits)
        self._name = name
        known = tuple(canonical(item) for item in (language_names() if languages is None else languages))
        self._capabilities = capabilities or BackendCapabilities(known, "fake", EnforcedLimits())
        self._is_closed = False
        self._runs = Runs(name, max_concurrency, queue_timeout)

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def reply(self, *replies: Reply) -> FakeBackend:
        """Adds replies to the queue."""
        self._queue.extend(replies)
        self._is_scripted = True
        return self

    def when(self, reply: Reply, *, language: str | None = None, code: str | None = None) -> FakeBackend:
        """Answers with `reply` if the language matches and the code contains the regular expression `code`."""
        pattern = None if code is None else re.compile(code)
        self._rules.append(_Rule(None if language is None else canonical(language), pattern, reply))
        return self

    async def execute(self, request: ExecRequest, *, listener: Listener | None = None) -> ExecResult:
        outcome = self._decide(request)
        with RunRecord(self.name, request, self._policy) as record:
            record.result = await self._runs.run(lambda run: _play(outcome, run, listener))
            return record.result

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """Delivers the guest's output at once; the result follows after the guest's `seconds`."""
        refuse_descriptor(self.name, stdin)
        return stream(lambda listener: self.execute(request, listener=listener))

    def execute_blocking(
        self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None
    ) -> ExecResult:
        """Like `execute`, without an event loop. Input from the descriptor `stdin` is recorded in the request."""
        request = read_descriptor(request, stdin)
        outcome = self._decide(request)
        with RunRecord(self.name, request, self._policy) as record:
            record.result = self._runs.run_blocking(lambda run: _play(outcome, run, listener))
            return record.result

    async def build(self, request: ExecRequest) -> Program:
        """Raises the script's reply if it is a `BuildFailed`. Each run of the program takes its own reply."""
        return self.build_blocking(request)

    def build_blocking(self, request: ExecRequest) -> Program:
        self._check(request)
        ruled = [rule.reply for rule in self._rules if rule.matches(request)]
        if isinstance((ruled or self._queue or [""])[0], BuildFailed):
            raise cast("BuildFailed", self._next_reply(request))
        return Program(
            self._name, request, self._runs, lambda asked, run, listener: _play(self._decide(asked), run, listener)
        )

    def close(self) -> None:
        """Ends runs in progress with `BackendUnavailable`."""
        self._is_closed = True
        self._runs.close()

    def _decide(self, request: ExecRequest) -> FakeOutcome:
        """Takes the reply before queueing, so that concurrent requests get the replies in the order of their calls."""
        self._check(request)
        self.requests.append(request)
        limits = effective_limits(self._policy, request.limits, request.memory_limit_mb)
        check_room(cast("Mapping[str, bytes]", request.files), limits.disk_mb)
        return resolve_reply(self._next_reply(request), request, limits, self._latency)

    def _check(self, request: ExecRequest) -> None:
        if self._is_closed:
            raise BackendUnavailable(f"the {self._name} backend is closed", hint="create a new FakeBackend")
        if canonical(request.language) not in self._capabilities.supported_languages:
            raise InvalidRequest(
                f"{self._name} does not run {request.language}", field="language", hint="name it in languages=[...]"
            )

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
                f"{self._name}: no reply left for request {len(self.requests)} ({request.language})",
                hint="add one with reply(...) or when(...)",
            )
        return ""


def _play(outcome: FakeOutcome, run: Run, listener: Listener | None = None) -> ExecResult:
    """Waits as long as the guest would run. All of its output comes at the start."""
    queued = time.monotonic() - run.requested_at
    deliver_result(listener, outcome.output)
    is_cancelled = threading.Event()
    with run.on_cancel(is_cancelled.set):
        is_cancelled.wait(outcome.delay)
    run.check()
    if isinstance(outcome.verdict, BaseException):
        raise outcome.verdict
    return outcome.verdict if outcome.is_scripted else replace(outcome.verdict, queued=queued)
