"""Recordings of runs: request, policy, outcome and versions, as JSON lines."""

from __future__ import annotations

import json
import os
import platform
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from io import FileIO
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult, Limits
from warmcell.interfaces.cli.render import to_plain
from warmcell.interfaces.client.wire import plain_request
from warmcell.policy.model import SandboxPolicy
from warmcell.workspace.untrusted_files import open_regular, parse_json

if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxBackend

FORMAT = 1
MAX_LINE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded run. `outcome` is what `warmcell run --json` prints."""

    request: ExecRequest
    outcome: Mapping[str, Any]
    backend: str = "process"
    enforcer: str | None = "auto"
    policy: SandboxPolicy | None = None
    versions: Mapping[str, str] | None = None


class Recorder:
    """A backend that runs every request on another one and records it. The caller closes the other one.

    The file is created with mode 0600: it contains code, input and environment. Pass the `policy` of the other backend,
    so that a replay uses it too.
    """

    def __init__(self, backend: SandboxBackend, path: str | os.PathLike[str], *, policy: SandboxPolicy | None = None):
        self._backend = backend
        self._path = os.fspath(path)
        self._policy = policy
        self.name = backend.name

    def capabilities(self) -> BackendCapabilities:
        return self._backend.capabilities()

    async def execute(self, request: ExecRequest) -> ExecResult:
        try:
            result = await self._backend.execute(request)
        except SandboxError as error:
            self._write(request, error)
            raise
        self._write(request, result)
        return result

    def _write(self, request: ExecRequest, outcome: ExecResult | SandboxError) -> None:
        write(self._path, make_recording(request, outcome, backend=self.name, policy=self._policy))

    async def aclose(self) -> None:
        """Does nothing: the other backend belongs to the caller."""


def make_recording(request: ExecRequest, outcome: ExecResult | SandboxError, backend: str, **about: Any) -> Recording:
    """`about`: other fields of the recording."""
    return Recording(request, to_plain(outcome), backend, versions=current_versions(backend, request), **about)


def current_versions(backend: str, request: ExecRequest) -> dict[str, str]:
    """The versions that could explain a difference: Warmcell, the kernel and the language."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("warmcell")
    except PackageNotFoundError:
        own = "unknown"
    found = {"warmcell": own, "kernel": platform.release(), "machine": platform.machine()}
    if backend == "process":
        from warmcell.languages.config import ProcessConfig
        from warmcell.languages.registry import language_version

        try:
            found[str(request.language)] = language_version(str(request.language), ProcessConfig())
        except SandboxError:  # not installed; the outcome says so
            found[str(request.language)] = "none"
    return found


def open_recording(path: str) -> FileIO:
    """To append to."""
    return open(open_regular(path, "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def write(path: str, recording: Recording) -> None:
    """Append one recording with a single write, so that concurrent writers do not interleave."""
    limits = recording.request.limits
    plain = {
        "format": FORMAT,
        "backend": recording.backend,
        "enforcer": recording.enforcer,
        "policy": None if recording.policy is None else json.loads(recording.policy.to_json()),
        "versions": dict(recording.versions or {}),
        "request": plain_request(recording.request) | {"limits": None if limits is None else asdict(limits)},
        "outcome": dict(recording.outcome),
    }
    line = json.dumps(plain, ensure_ascii=True, default=str).encode() + b"\n"
    try:
        with open_recording(path) as file:
            file.write(line)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path!r}: {(error.strerror or '').lower()}", field="record") from None


def read(path: str) -> Iterator[Recording]:
    """Yield the recordings of a file. `InvalidRequest` names an invalid line."""
    try:
        with open(open_regular(path, "record"), "rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield _recording(line, f"line {number}")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path!r}: {(error.strerror or '').lower()}", field="record") from None


def _recording(line: bytes, where: str) -> Recording:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"is longer than {MAX_LINE_BYTES} bytes", field=where)
    try:
        plain = parse_json(line)
        if plain["format"] != FORMAT:
            raise InvalidRequest(f"has format {str(plain['format'])[:20]}, not {FORMAT}", field=where)
        policy = None if plain["policy"] is None else SandboxPolicy.from_json(json.dumps(plain["policy"]))
        request = _request_from_plain(plain["request"])
        outcome, versions = dict(plain["outcome"]), {str(k): str(v) for k, v in plain["versions"].items()}
        if not all(isinstance(outcome.get(name) or {}, dict) for name in ("error", "enforced")):
            raise TypeError("not a result or an error")
        enforcer = None if plain["enforcer"] is None else str(plain["enforcer"])
        return Recording(request, outcome, str(plain["backend"]), enforcer, policy, versions)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"is not a recording ({type(error).__name__})", field=where) from None


def _request_from_plain(plain: Mapping[str, Any]) -> ExecRequest:
    return ExecRequest(
        plain["language"],
        _from_plain(plain["code"]),
        plain["timeout"],
        stdin=None if plain["stdin"] is None else _from_plain(plain["stdin"]),
        memory_limit_mb=plain["memory_limit_mb"],
        env=plain["env"],
        limits=None if plain["limits"] is None else Limits(**plain["limits"]),
        args=tuple(plain["args"]),
        files={path: _from_plain(content) for path, content in plain["files"].items()},
        fetch_files=tuple(plain["fetch_files"]),
    )


def _from_plain(content: Any) -> str | bytes:
    return content if isinstance(content, str) else b64decode(content["base64"], validate=True)
