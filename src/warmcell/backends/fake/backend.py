"""FakeBackend: a backend that runs nothing and answers from a script, for your own tests.

    backend = FakeBackend(["42\\n", FakeGuest(stdout="so far", seconds=60)])
    await backend.execute(request)      # ExecResult(stdout="42\\n")
    await backend.execute(request)      # raises ExecutionTimeout with the partial output, after the request's timeout
    backend.requests                    # what was asked for

It keeps the whole contract of `SandboxBackend`: typed errors, limits, capped output, a queue, cancellation, closing.
`tests/contract` holds it to that beside the real ones.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from warmcell.backends.built import Program
from warmcell.backends.fake.script import Answer, Ending, Reply, ending
from warmcell.backends.many import Requests, in_step, run_many
from warmcell.backends.streaming import refuse_descriptor, stream
from warmcell.core.errors import BackendUnavailable, BuildFailed, ExecutionFailed, InvalidRequest
from warmcell.core.outcomes import Outcome
from warmcell.core.output_events import StreamEvent
from warmcell.core.run_record import RunRecord
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult, Limits
from warmcell.languages.registry import canonical, language_names
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.runner.listening import Listener, tell_whole
from warmcell.workspace.run_directory import check_room


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


class FakeBackend:
    """Answers by rule (`when`), else from the queue, else by the callable; an exhausted script is an error.

    Without any script every request succeeds and prints nothing. `limits` caps what requests may ask for, as a policy's
    do; `max_concurrency` and `queue_timeout` are those of `ProcessConfig`. `capabilities` says honestly that nothing is
    enforced, because nothing runs; pass your own to test how your code reacts to a stronger or weaker host.
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
        """Adds to the queue."""
        self._queue.extend(replies)
        self._is_scripted = True
        return self

    def when(self, reply: Reply, *, language: str | None = None, code: str | None = None) -> FakeBackend:
        """Answers with `reply` whenever the language is this one and the regular expression `code` is found."""
        pattern = None if code is None else re.compile(code)
        self._rules.append(_Rule(None if language is None else canonical(language), pattern, reply))
        return self

    async def execute(self, request: ExecRequest, *, listener: Listener | None = None) -> ExecResult:
        end = self._decide(request)
        with RunRecord(self.name, request, self._policy) as record:
            record.result = await self._runs.run(lambda run: _play(end, run, listener))
            return record.result

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """As of the real ones: what the guest prints comes at once, then it goes on for its seconds."""
        refuse_descriptor(self.name, stdin)
        return stream(lambda listener: self.execute(request, listener=listener))

    def stream_blocking(self, request: ExecRequest, *, stdin: int = -1) -> Iterator[StreamEvent]:
        return in_step(self.stream(request, stdin=stdin))

    def execute_blocking(
        self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None
    ) -> ExecResult:
        """The same without an event loop, as `ProcessBackend` has it. What comes on `stdin` is recorded as given."""
        if stdin >= 0:
            with os.fdopen(os.dup(stdin), "rb") as source:
                request = replace(request, stdin=source.read())
        end = self._decide(request)
        with RunRecord(self.name, request, self._policy) as record:
            record.result = self._runs.run_blocking(lambda run: _play(end, run, listener))
            return record.result

    async def build(self, request: ExecRequest) -> Program:
        """Raises the script's reply to the request if that is a `BuildFailed`; each run of the program asks it anew."""
        return self.build_blocking(request)

    def build_blocking(self, request: ExecRequest) -> Program:
        self._check(request)
        ruled = [rule.reply for rule in self._rules if rule.matches(request)]
        if isinstance((ruled or self._queue or [""])[0], BuildFailed):
            raise cast("BuildFailed", self._next_reply(request))
        return Program(
            self._name, request, self._runs, lambda asked, run, listener: _play(self._decide(asked), run, listener)
        )

    def run_many(self, requests: Requests, concurrency: int | None = None) -> AsyncIterator[Outcome]:
        """As of the real ones."""
        return run_many(self.execute, requests, concurrency)

    def run_many_blocking(self, requests: Iterable[ExecRequest], concurrency: int | None = None) -> Iterator[Outcome]:
        return in_step(self.run_many(requests, concurrency))

    async def aclose(self) -> None:
        from warmcell.lifetime.threads import in_thread

        await in_thread(self.close)

    def close(self) -> None:
        """Ends what is under way with `BackendUnavailable`."""
        self._is_closed = True
        self._runs.close()

    def _decide(self, request: ExecRequest) -> Ending:
        """Before anybody waits, so that concurrent requests get the script's answers in the order of their calls."""
        self._check(request)
        self.requests.append(request)
        limits = effective_limits(self._policy, request.limits, request.memory_limit_mb)
        check_room(cast("Mapping[str, bytes]", request.files), limits.disk_mb)
        return ending(self._next_reply(request), request, limits, self._latency)

    def _check(self, request: ExecRequest) -> None:
        if self._is_closed:
            raise BackendUnavailable(f"the {self._name} backend was closed", hint="make a new FakeBackend")
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
                f"{self._name}: no reply is left for request {len(self.requests)} ({request.language})",
                hint="add one with reply(...) or when(...)",
            )
        return ""


def _play(end: Ending, run: Run, listener: Listener | None = None) -> ExecResult:
    """Takes as long as the guest would have, which printed everything when it began."""
    queued = time.monotonic() - run.asked
    tell_whole(listener, end.printed)
    over = threading.Event()
    with run.on_cancel(over.set):
        over.wait(end.delay)
    run.check()
    if isinstance(end.verdict, BaseException):
        raise end.verdict
    return end.verdict if end.is_scripted else replace(end.verdict, queued=queued)
