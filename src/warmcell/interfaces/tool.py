"""SandboxTool: a tool for models. Whatever a model sends, it gets an answer that it can act on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult, Language
from warmcell.lifetime.portal import portal
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.sandbox.blocking import Sandbox
from warmcell.sandbox.tools.answers import MAX_TEXT, failure, success
from warmcell.sandbox.tools.definitions import network_words, number_schema, object_schema, text_schema
from warmcell.sandbox.tools.toolset import check_language, list_ignored

MIN_TIMEOUT = 1
MAX_TIMEOUT = 300
DEFAULT_TIMEOUT = 30
_ARGUMENTS = ("language", "code", "stdin", "timeout_secs")


class SandboxTool:
    """Runs code for a model over any backend, or in the work directory of a `Sandbox` or `AsyncSandbox`.

    `execute` returns a dictionary for every input and every exception of the backend; only cancellation and interpreter
    exit propagate. The backend's policy is fixed: no argument can change it. The caller closes the backend or destroys
    the sandbox.
    """

    name = "sandbox_exec"
    required_scopes = ("code:execute",)

    def __init__(
        self,
        backend: SandboxBackend | Sandbox | AsyncSandbox,
        *,
        memory_limit_mb: int | None = None,
        env: Mapping[str, str] | None = None,
        max_text: int = MAX_TEXT,
    ) -> None:
        """`memory_limit_mb` and `env` apply to every run; `max_text` limits the characters of each stream."""
        if isinstance(backend, Sandbox | AsyncSandbox):
            if memory_limit_mb is not None or env:
                hint = "give them to the Sandbox"
                raise InvalidRequest("the sandbox has its own memory_limit_mb and env", field="backend", hint=hint)
            backend = _SandboxBackend(backend)
        if isinstance(backend, type) or not isinstance(backend, SandboxBackend):
            shown = backend.__name__ if isinstance(backend, type) else type(backend).__name__
            hint = "give it a Sandbox, or an object such as ProcessBackend(): name, capabilities(), execute(), aclose()"
            raise InvalidRequest(f"{shown[:40]!r} is not a backend", field="backend", hint=hint)
        if isinstance(max_text, bool) or not isinstance(max_text, int) or max_text < 100:
            raise InvalidRequest("must be a whole number of at least 100 characters", field="max_text")
        self._backend = backend
        self._memory_limit_mb = memory_limit_mb
        self._env = dict(env or {})
        self._max_text = max_text

    @property
    def description(self) -> str:
        """The description for the model, from the backend's capabilities."""
        capabilities = self._backend.capabilities()
        languages = ", ".join(capabilities.supported_languages)
        shell = " ('command' is a shell script)" if Language.COMMAND in capabilities.supported_languages else ""
        return (
            f"Run code in a sandbox and return its output. Languages: {languages}{shell}. "
            f"Each run starts afresh, with {network_words(capabilities)}; state is not kept between calls. A non-zero "
            "exit_code is a result, not a failure of the tool. Print what you want to see."
        )

    def parameters_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments, with the languages that this backend runs on this host."""
        languages = [str(item) for item in self._backend.capabilities().supported_languages]
        words = "Seconds after which the program is stopped."
        return object_schema(
            ["language", "code"],
            language=text_schema("What the code is written in.", enum=languages),
            code=text_schema("The whole program."),
            stdin=text_schema("What the program reads from standard input."),
            timeout_secs=number_schema(words, MIN_TIMEOUT, MAX_TIMEOUT, DEFAULT_TIMEOUT),
        )

    async def execute(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model's code. `status` is `success`, `timeout`, `memory_exceeded` or `error`."""
        try:
            request = self._request(args)
            answer = success(await self._backend.execute(request), self._max_text)
        except Exception as error:
            answer = failure(error, self._max_text)
        return answer | list_ignored(_ARGUMENTS, args)

    def _request(self, args: object) -> ExecRequest:
        if not isinstance(args, Mapping):
            raise InvalidRequest(f"must be an object, not {type(args).__name__}", field="arguments")
        for name in ("language", "code"):
            if args.get(name) is None:
                raise InvalidRequest("is required", field=name)
            if not isinstance(args[name], str):
                raise InvalidRequest(f"must be a string, not {type(args[name]).__name__}", field=name)
        stdin = args.get("stdin")
        if stdin is not None and not isinstance(stdin, str):
            raise InvalidRequest(f"must be a string, not {type(stdin).__name__}", field="stdin")
        return ExecRequest(
            check_language("language", args["language"], self._languages),
            args["code"],
            _timeout(args.get("timeout_secs")),
            stdin=stdin,
            memory_limit_mb=self._memory_limit_mb,
            env=self._env,
        )

    @cached_property
    def _languages(self) -> tuple[str, ...]:
        """Cached: looking for sixteen toolchains takes about as long as a small run."""
        return self._backend.capabilities().supported_languages


class _SandboxBackend:
    """A sandbox as a backend: each run uses its work directory. The caller destroys it."""

    name = "sandbox"

    def __init__(self, sandbox: Sandbox | AsyncSandbox) -> None:
        self._sandbox = sandbox

    def capabilities(self) -> BackendCapabilities:
        return self._sandbox.capabilities()

    async def execute(self, request: ExecRequest) -> ExecResult:
        arguments: dict[str, Any] = {"stdin": request.stdin, "timeout": request.timeout}
        if isinstance(self._sandbox, AsyncSandbox):
            return await self._sandbox.run(request.code, request.language, **arguments)
        return await portal.call_async(self._sandbox._async.run, request.code, request.language, **arguments)

    async def aclose(self) -> None:
        """Does nothing: the sandbox belongs to the caller."""


def _timeout(value: object) -> float:
    """Check the model's timeout against the range in the schema."""
    if value is None:
        return float(DEFAULT_TIMEOUT)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"must be a number of seconds, not {type(value).__name__}", field="timeout_secs")
    # Compared first: an integer of 5,000 digits can neither become a float nor be printed.
    if not MIN_TIMEOUT <= value <= MAX_TIMEOUT:
        shown = "not a number" if isinstance(value, float) and math.isnan(value) else "out of range"
        raise InvalidRequest(f"must be from {MIN_TIMEOUT} to {MAX_TIMEOUT} ({shown})", field="timeout_secs")
    return float(value)
