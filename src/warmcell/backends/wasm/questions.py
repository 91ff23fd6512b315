"""Answers what a running guest asks of the supervisor: a fetch, or the module behind a command.

A guest that took its worker over could ask anything. What is parsed here is small and checked field by field; a body is
passed on as bytes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from warmcell.backends.wasm.conversation import Conversation
from warmcell.backends.wasm.frames import Frame, Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.lease import Lease
from warmcell.backends.wasm.module_loading import Load, Loader
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.run_request import Fetch, RunRequest
from warmcell.cage.light import write_json
from warmcell.core.errors import BackendBusy, BackendUnavailable, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_log = LateLog(__name__)
#: The module that runs a command, or None where there is no such command.
CommandModules = Callable[[str], ModuleSource | None]
_SEND_SECONDS = 10.0
_FETCH_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool}


class Questions:
    """One per run in which any are asked."""

    def __init__(
        self,
        conversation: Conversation,
        lease: Lease,
        loader: Loader,
        request: RunRequest,
        commands: CommandModules | None,
        run: Run,
    ) -> None:
        self._conversation = conversation
        self._worker = lease.worker
        self._loader = loader
        self._fetch = request.fetch
        self._needs_fuel = request.fuel is not None
        self._commands = commands
        self._run = run
        self._offered = ""

    def answer(self, frame: Frame) -> None:
        what = frame.message.get("what")
        if what == "fetch" and self._fetch is not None:
            request = fetch_request(frame)
            # In a thread of its own: the deadline and the output of the run are watched meanwhile.
            start_daemon(self._answer_fetch, self._fetch, request)
        elif what == "command" and self._commands is not None:
            self._answer_command(frame.message.get("name"), self._commands)
        elif what == "loaded" and self._offered:
            # Only now: a module that the worker could not load must not count as loaded in its next run.
            self._worker.loaded[self._offered] = None
            self._offered = ""
        else:
            raise ProtocolViolation(f"question about {str(what)[:40]!r}")

    def _answer_fetch(self, fetch: Fetch, request: bytes) -> None:
        try:
            data = fetch(request)
        except SandboxError as error:
            data = _error(error.code, str(error))
        except Exception as error:
            data = _error("sandbox.fetch_failed", f"fetch failed: {type(error).__name__}")
        with contextlib.suppress(WorkerDied, Overstayed):
            self._worker.channel.send({"op": "answer"}, data, timeout=_SEND_SECONDS)

    def _answer_command(self, name: object, commands: CommandModules) -> None:
        started = time.monotonic()
        try:
            source = commands(name) if isinstance(name, str) else None
            if source is None:
                self._refuse("command not found")
            else:
                self._send_module(Load(source, self._needs_fuel), started)
        except BackendUnavailable as error:
            _log.warning("a command is not available: %s", error)
            self._refuse(error.hint or "it is not available here")
        except SandboxError as error:
            _log.warning("a command could not be made ready: %s", error)
            self._refuse("it could not be made ready")

    def _refuse(self, reason: str) -> None:
        self._send({"op": "answer", "is_found": False, "reason": reason})

    def _send_module(self, load: Load, started: float) -> None:
        compiled = self._loader.find_compiled(load)
        if compiled is None:
            # With no worker to spare, the one that asks compiles it itself, and the result is not kept.
            with contextlib.suppress(BackendBusy):
                self._loader.prepare_own(load, self._run)
            compiled = self._loader.find_compiled(load)
        message = load.message("compiled" if compiled else load.source.format, [])
        message |= {"op": "answer", "is_found": True, "facts": compiled.facts if compiled else {}}
        self._offered = load.key
        self._give_time(started)
        if compiled is None:
            self._send(message, load.source.read())
            return
        with contextlib.closing(compiled):
            self._send(message, b"", [compiled.descriptor])

    def _give_time(self, started: float) -> None:
        """Preparing a module of ours is not the guest's time; the worker has stopped its clock as well."""
        self._conversation.give_time(time.monotonic() - started)

    def _send(self, message: dict[str, Any], blob: bytes = b"", descriptors: list[int] | None = None) -> None:
        self._worker.channel.send(message, blob, descriptors or [], timeout=_SEND_SECONDS)


def fetch_request(frame: Frame) -> bytes:
    """The request as `Fetch` takes it, built from fields of the right type and nothing else."""
    fields = {name: frame.message[name] for name in _FETCH_FIELDS if frame.message.get(name) is not None}
    for name, value in fields.items():
        is_boolean = isinstance(value, bool) and name != "follow_redirects"
        if is_boolean or not isinstance(value, _FETCH_FIELDS[name]):  # type: ignore[arg-type]
            raise ProtocolViolation(f"{name} is of the wrong type")
    if not all(isinstance(value, str) for value in fields.get("headers", {}).values()):
        raise ProtocolViolation("headers are not texts")
    if frame.message.get("has_body") is True:
        import base64

        fields["body"] = base64.b64encode(frame.blob).decode()
    return write_json(fields).encode()


def _error(code: str, message: str) -> bytes:
    return write_json({"error": {"code": code, "message": message}}).encode()
