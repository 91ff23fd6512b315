"""Handles the host calls of a running guest that need the supervisor: a fetch, or the module of a command.

A guest that took its worker over could send anything. Messages are small and checked field by field; bodies are passed
on as bytes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from warmcell.backends.wasm.channel import Frame, WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.lease import Lease
from warmcell.backends.wasm.module_loader import LoadRequest, ModuleLoader
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pending_request import PendingRequest
from warmcell.backends.wasm.run_request import Fetch, RunRequest
from warmcell.cage.fast_imports import write_json
from warmcell.core.errors import BackendBusy, BackendUnavailable, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.guest.wasm.protocol import ProtocolViolation
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_log = LateLog(__name__)
#: Returns the module of a command, or None if there is no such command.
CommandModules = Callable[[str], ModuleSource | None]
_SEND_SECONDS = 10.0
_FETCH_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool}


class HostCalls:
    """The host calls of one run."""

    def __init__(
        self,
        pending: PendingRequest,
        lease: Lease,
        loader: ModuleLoader,
        request: RunRequest,
        commands: CommandModules | None,
        run: Run,
    ) -> None:
        self._pending = pending
        self._worker = lease.worker
        self._loader = loader
        self._fetch = request.fetch
        self._needs_fuel = request.limits.fuel is not None
        self._commands = commands
        self._run = run
        self._offered = ""

    def handle(self, frame: Frame) -> None:
        what = frame.message.get("what")
        if what == "fetch" and self._fetch is not None:
            request = fetch_request(frame)
            # In a thread: this one watches the run's deadline and output meanwhile.
            start_daemon(self._send_fetch, self._fetch, request)
        elif what == "command" and self._commands is not None:
            self._send_command(frame.message.get("name"), self._commands)
        elif what == "loaded" and self._offered:
            # Only now: a module that the worker failed to load must not count as loaded.
            self._worker.loaded[self._offered] = None
            self._offered = ""
        else:
            raise ProtocolViolation(f"unexpected host call {str(what)[:40]!r}")

    def _send_fetch(self, fetch: Fetch, request: bytes) -> None:
        try:
            data = fetch(request)
        except SandboxError as error:
            data = _error(error.code, str(error))
        except Exception as error:
            data = _error("sandbox.fetch_failed", f"fetch failed: {type(error).__name__}")
        with contextlib.suppress(WorkerDied, WorkerTimedOut):
            self._worker.channel.send({"op": "answer"}, data, timeout=_SEND_SECONDS)

    def _send_command(self, name: object, commands: CommandModules) -> None:
        started = time.monotonic()
        try:
            source = commands(name) if isinstance(name, str) else None
            if source is None:
                self._refuse("command not found")
            else:
                self._send_module(LoadRequest(source, self._needs_fuel), started)
        except BackendUnavailable as error:
            _log.warning("command %r is not available: %s", name, error)
            self._refuse(error.hint or "not available on this host")
        except SandboxError as error:
            _log.warning("command %r could not be loaded: %s", name, error)
            self._refuse("its module could not be loaded")

    def _refuse(self, reason: str) -> None:
        self._send({"op": "answer", "is_found": False, "reason": reason})

    def _send_module(self, load: LoadRequest, started: float) -> None:
        compiled = self._loader.find_compiled(load)
        if compiled is None:
            # If all workers are busy, the calling worker compiles it, and the result is not cached.
            with contextlib.suppress(BackendBusy):
                self._loader.prepare_own(load, self._run)
            compiled = self._loader.find_compiled(load)
        message = load.message("compiled" if compiled else load.source.format, [])
        message |= {"op": "answer", "is_found": True, "facts": compiled.facts if compiled else {}}
        self._offered = load.key
        # Preparing our own module is not the guest's time. The worker has stopped its clock too.
        self._pending.extend(time.monotonic() - started)
        if compiled is None:
            self._send(message, load.source.read())
            return
        with contextlib.closing(compiled):
            self._send(message, b"", [compiled.descriptor])

    def _send(self, message: dict[str, Any], blob: bytes = b"", descriptors: list[int] | None = None) -> None:
        self._worker.channel.send(message, blob, descriptors or [], timeout=_SEND_SECONDS)


def fetch_request(frame: Frame) -> bytes:
    """The request for `Fetch`, built only from known fields of the right type."""
    fields = {name: frame.message[name] for name in _FETCH_FIELDS if frame.message.get(name) is not None}
    for name, value in fields.items():
        is_boolean = isinstance(value, bool) and name != "follow_redirects"
        if is_boolean or not isinstance(value, _FETCH_FIELDS[name]):  # type: ignore[arg-type]
            raise ProtocolViolation(f"{name} has the wrong type")
    if not all(isinstance(value, str) for value in fields.get("headers", {}).values()):
        raise ProtocolViolation("header values are not strings")
    if frame.message.get("has_body") is True:
        import base64

        fields["body"] = base64.b64encode(frame.blob).decode()
    return write_json(fields).encode()


def _error(code: str, message: str) -> bytes:
    return write_json({"error": {"code": code, "message": message}}).encode()
