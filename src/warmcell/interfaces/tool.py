"""SandboxTool: the door that a model uses. Whatever it sends, it gets data back that it can act on."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from warmcell.core.contracts import SandboxBackend
from warmcell.core.errors import (
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
)
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult, Language
from warmcell.interfaces.lines import one_line
from warmcell.interfaces.text import cap, explain, in_guest_terms
from warmcell.languages.registry import known_language

MIN_TIMEOUT = 1
MAX_TIMEOUT = 300
DEFAULT_TIMEOUT = 30
MAX_TEXT = 30_000
MAX_DENIALS = 20
MAX_NAMES = 20
_ARGUMENTS = ("language", "code", "stdin", "timeout_secs")
_log = logging.getLogger("warmcell.tool")


class SandboxTool:
    """Runs code for a model over any backend.

    `execute` returns a dictionary for everything that a model can send and everything that a backend can raise;
    only cancellation (and the interpreter's own exits) pass through. What the guest may do is the backend's, fixed
    when it was made: no argument reaches the policy. The caller closes the backend.
    """

    name = "sandbox_exec"
    required_scopes = ("code:execute",)

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        memory_limit_mb: int | None = None,
        env: Mapping[str, str] | None = None,
        max_text: int = MAX_TEXT,
    ) -> None:
        """`memory_limit_mb` and `env` hold for every run; `max_text` caps what a model sees of each stream."""
        if isinstance(backend, type) or not isinstance(backend, SandboxBackend):
            shown = backend.__name__ if isinstance(backend, type) else type(backend).__name__
            hint = "give it an object such as ProcessBackend(): name, capabilities(), execute(), aclose()"
            raise InvalidRequest(f"{shown[:40]!r} is not a backend", field="backend", hint=hint)
        if isinstance(max_text, bool) or not isinstance(max_text, int) or max_text < 100:
            raise InvalidRequest("must be a whole number of at least 100 characters", field="max_text")
        self._backend = backend
        self._memory_limit_mb = memory_limit_mb
        self._env = dict(env or {})
        self._max_text = max_text

    @property
    def description(self) -> str:
        """What a model is told, from what the backend really has."""
        capabilities = self._backend.capabilities()
        languages = ", ".join(capabilities.supported_languages)
        shell = " ('command' is a shell script)" if Language.COMMAND in capabilities.supported_languages else ""
        return (
            f"Run code in a sandbox and return its output. Languages: {languages}{shell}. "
            f"Each run starts afresh, with {_network(capabilities)}; state is not kept between calls. A non-zero "
            "exit_code is a result, not a failure of the tool. Print what you want to see."
        )

    def parameters_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments, with the languages that this backend runs on this host."""
        languages = [str(item) for item in self._backend.capabilities().supported_languages]
        return {
            "type": "object",
            "properties": {
                "language": {"type": "string", "enum": languages, "description": "What the code is written in."},
                "code": {"type": "string", "description": "The whole program."},
                "stdin": {"type": "string", "description": "What the program reads from standard input."},
                "timeout_secs": {
                    "type": "integer",
                    "minimum": MIN_TIMEOUT,
                    "maximum": MAX_TIMEOUT,
                    "default": DEFAULT_TIMEOUT,
                    "description": "Seconds after which the program is stopped.",
                },
            },
            "required": ["language", "code"],
            "additionalProperties": False,
        }

    async def execute(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Runs what the model asked for. `status` is `success`, `timeout`, `memory_exceeded` or `error`."""
        try:
            request = self._request(args)
            answer = self._success(await self._backend.execute(request))
        except ExecutionTimeout as error:
            answer = self._stopped("timeout", error, error.result, error.timeout)
        except MemoryExceeded as error:
            answer = self._stopped("memory_exceeded", error, error.result, 0.0)
        except FuelExhausted as error:
            answer = self._stopped("error", error, error.result, 0.0)
        except SandboxError as error:
            answer = {"status": "error", "stderr": explain(error), "fault": error.fault}
        except Exception as error:
            # Somebody else's exception may hold anything of the host, so the model gets its kind and we log the rest.
            _log.exception("backend failed")
            said = f"the sandbox failed inside ({type(error).__name__}); try again"
            answer = {"status": "error", "stderr": said, "fault": "host"}
        return answer | _ignored(args)

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
            self._language(args["language"]),
            args["code"],
            _timeout(args.get("timeout_secs")),
            stdin=stdin,
            memory_limit_mb=self._memory_limit_mb,
            env=self._env,
        )

    def _language(self, name: str) -> str:
        """The backend's own word for what the model asked for, by any of its names."""
        row = known_language(name)
        wanted = row.name if row is not None else name.lower()
        if wanted in self._supported:
            return wanted
        what = f"unknown language {name[:40]!r}" if row is None else f"{wanted} cannot be run here: {row.remedy}"
        raise InvalidRequest(what, field="language", hint=f"one of {', '.join(self._supported)}")

    @cached_property
    def _supported(self) -> tuple[str, ...]:
        """Asked once: looking for sixteen toolchains takes about as long as a small run."""
        return self._backend.capabilities().supported_languages

    def _success(self, result: ExecResult) -> dict[str, Any]:
        stdout, stderr, was_cut = self._texts(result)
        answer: dict[str, Any] = {
            "status": "success",
            "stdout": stdout,
            "stderr": stderr,
            "exit_code": result.exit_code,
            "duration_ms": _milliseconds(result.duration),
        }
        if result.signal is not None:
            answer["signal"] = result.signal
        return answer | _details(result, was_cut)

    def _texts(self, result: ExecResult) -> tuple[str, str, bool]:
        """Both streams as a model sees them, and whether anything was left out."""
        stdout, stdout_cut = cap(result.stdout, self._max_text)
        stderr, stderr_cut = cap(result.stderr, self._max_text)
        return in_guest_terms(stdout), in_guest_terms(stderr), stdout_cut or stderr_cut

    def _stopped(self, status: str, error: SandboxError, partial: ExecResult | None, duration: float) -> dict[str, Any]:
        """A run that a limit ended: what it had printed, and why it ended, last, where a model looks."""
        result = partial or ExecResult(duration=duration)
        stdout, stderr, was_cut = self._texts(result)
        separator = "\n" if stderr and not stderr.endswith("\n") else ""
        answer: dict[str, Any] = {
            "status": status,
            "stdout": stdout,
            "stderr": f"{stderr}{separator}{error.message}",
            "duration_ms": _milliseconds(result.duration),
            "fault": error.fault,
        }
        return answer | _details(result, was_cut)


def _network(capabilities: BackendCapabilities) -> str:
    """What a model is told about the network: never less than there is, since it would try, and never more."""
    if not capabilities.enforced_limits.network_isolation:
        return "the host's network"
    names = capabilities.network
    if not names:
        return "no network access"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"network access to {', '.join(names[:MAX_NAMES])}{more} only, through the proxy that the environment names"


def _timeout(value: object) -> float:
    """The model's timeout, in the range that the schema states; junk and out of range are said, never stretched."""
    if value is None:
        return float(DEFAULT_TIMEOUT)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"must be a number of seconds, not {type(value).__name__}", field="timeout_secs")
    # Compared before anything else: a whole number of 5,000 digits can neither become a float nor be printed.
    if not MIN_TIMEOUT <= value <= MAX_TIMEOUT:
        shown = "not a number" if isinstance(value, float) and math.isnan(value) else "out of range"
        raise InvalidRequest(f"must be from {MIN_TIMEOUT} to {MAX_TIMEOUT} ({shown})", field="timeout_secs")
    return float(value)


def _details(result: ExecResult, was_cut: bool) -> dict[str, Any]:
    """The keys that are there only when they say something."""
    details: dict[str, Any] = {}
    if was_cut or result.stdout_truncated or result.stderr_truncated:
        details["truncated"] = True
    if result.denials:
        details["denials"] = [
            {"kind": item.kind, "what": _said(item.what), "rule": item.rule, "hint": _said(item.hint)}
            for item in result.denials[:MAX_DENIALS]
        ]
    if result.usage.cpu_time or result.usage.peak_memory_bytes:
        details["usage"] = {
            "cpu_ms": _milliseconds(result.usage.cpu_time),
            "peak_memory_mb": round(result.usage.peak_memory_bytes / (1024 * 1024), 1),
        }
    return details


def _said(text: str) -> str:
    """Words of ours around a name that the guest chose."""
    return one_line(in_guest_terms(text[:1000]), 500)


def _ignored(args: object) -> dict[str, Any]:
    """Arguments that this tool does not have. Naming them tells a model that they had no effect."""
    if not isinstance(args, Mapping):
        return {}
    unknown = [one_line(key[:40]) for key in args if isinstance(key, str) and key not in _ARGUMENTS]
    return {"ignored_arguments": unknown[:10]} if unknown else {}


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
