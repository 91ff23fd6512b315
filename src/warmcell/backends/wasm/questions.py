"""Answers what a running guest asks of the supervisor: a fetch, or the module behind a command."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from warmcell.backends.wasm.conversation import Conversation
from warmcell.backends.wasm.frames import Frame, Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.module_loading import Loader, load_message
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pool import AllBusy
from warmcell.backends.wasm.run_request import Fetch
from warmcell.backends.wasm.worker import Worker
from warmcell.core.errors import BackendUnavailable, SandboxError

#: The module that runs a command, or None where there is no such command.
CommandModules = Callable[[str], ModuleSource | None]
_SEND_SECONDS = 10.0


class Questions:
    """One per run. `conversation` is set before the first question can arrive."""

    def __init__(self, worker: Worker, loader: Loader, fetch: Fetch | None, commands: CommandModules | None) -> None:
        self._worker = worker
        self._loader = loader
        self._fetch = fetch
        self._commands = commands
        self.conversation: Conversation | None = None

    def answer(self, frame: Frame) -> None:
        what = frame.message.get("what")
        if what == "fetch" and self._fetch is not None:
            # In a thread of its own: the deadline and the output of the run are watched meanwhile.
            threading.Thread(target=self._answer_fetch, args=(self._fetch, frame.blob), daemon=True).start()
        elif what == "command" and self._commands is not None:
            self._answer_command(frame.message.get("name"), frame.message.get("fuel") is True, self._commands)
        else:
            raise ProtocolViolation(f"question about {what!r}")

    def _answer_fetch(self, fetch: Fetch, raw: bytes) -> None:
        try:
            data = fetch(raw)
        except SandboxError as error:
            data = _error(error.code, str(error))
        except Exception as error:
            data = _error("sandbox.fetch_failed", f"fetch failed: {type(error).__name__}")
        with contextlib.suppress(WorkerDied, Overstayed):
            self._worker.channel.send({"op": "answer"}, data, timeout=_SEND_SECONDS)

    def _answer_command(self, name: object, needs_fuel: bool, commands: CommandModules) -> None:
        started = time.monotonic()
        try:
            source = commands(name) if isinstance(name, str) else None
        except BackendUnavailable as error:
            self._send({"op": "answer", "is_found": False, "reason": str(error)})
            return
        if source is None:
            self._send({"op": "answer", "is_found": False, "reason": "command not found"})
            return
        self._send_module(source, needs_fuel, started)

    def _send_module(self, source: ModuleSource, needs_fuel: bool, started: float) -> None:
        compiled = self._loader.find_compiled(source, needs_fuel)
        if compiled is None:
            # With no worker to spare, the one that asks compiles it itself, and the result is not kept.
            with contextlib.suppress(AllBusy):
                self._loader.prepare_own(source, needs_fuel, may_wait=False)
            compiled = self._loader.find_compiled(source, needs_fuel)
        message = load_message(source, needs_fuel, "compiled" if compiled else source.format, [])
        message |= {"op": "answer", "is_found": True, "facts": compiled.facts if compiled else {}}
        self._give_time(started)
        self._worker.loaded[message["key"]] = 0
        if compiled is None:
            self._send(message, source.read())
            return
        with contextlib.closing(compiled):
            self._send(message, b"", [compiled.descriptor])

    def _give_time(self, started: float) -> None:
        """Preparing a module of ours is not the guest's time; the worker has stopped its clock as well."""
        if self.conversation is not None:
            self.conversation.extend(time.monotonic() - started)

    def _send(self, message: dict[str, Any], blob: bytes = b"", descriptors: list[int] | None = None) -> None:
        self._worker.channel.send(message, blob, descriptors or [], timeout=_SEND_SECONDS)


def _error(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()
