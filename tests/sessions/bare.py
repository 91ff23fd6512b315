"""A session's worker without a cage: the guest's files and the host's conversation, and nothing else between them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

import warmcell.guest
from warmcell.core.types import DEFAULT_OUTPUT_BYTES, Denial, ExecResult
from warmcell.lifetime.run import Run
from warmcell.runner.starvation import GuestClock
from warmcell.sessions import exchange, session_protocol
from warmcell.sessions.cell_results import CellResult
from warmcell.sessions.exchange import Listeners
from warmcell.sessions.session_protocol import SessionProtocol


def make_listeners(callbacks: Mapping[str, Callable[[Any], object]]) -> Listeners:
    """Plain callbacks, as a session hands them on."""
    return Listeners(
        **{name: lambda what, run, call=call: call(what) for name, call in callbacks.items()}  # type: ignore[misc]
    )


def skip_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Returns a function that lets 29.5 s pass for cells. One with a timeout of 30 s has 0.5 s left after its call."""
    skipped: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(skipped))
    for module in (exchange, session_protocol):
        monkeypatch.setattr(module, "time", clock)
    return lambda: skipped.append(29.5)


LIVE = os.path.join(warmcell.guest.__path__[0], "live")
#: As the agent's start has it, with the control socket put at its place.
_BOOT = f"""
import os, sys
from types import ModuleType
os.dup2(int(sys.argv[1]), 3, inheritable=False)
package = ModuleType("warmcell_live")
package.__path__ = [{LIVE!r}]
sys.modules["warmcell_live"] = package
from importlib import import_module
import_module("warmcell_live." + sys.argv[2]).main()
"""


class BareWorker:
    def __init__(self, argv: Callable[[int], list[str]], **options: object) -> None:
        self.control, theirs = socket.socketpair()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.process = subprocess.Popen(
            argv(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )
        theirs.close()
        os.close(stdout)
        os.close(stderr)

    def interrupt(self, *, is_repeated: bool = False) -> None:
        with suppress(ProcessLookupError):
            (os.kill if is_repeated else os.killpg)(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reason(self) -> str:
        return f"status {self.process.wait(10)}"

    def limit_error(self, result: ExecResult) -> None: ...

    def end_if_over_memory(self, peak: int) -> bool:
        return False

    def denials_since(self, moment: float) -> list[Denial]:
        return []

    def start_clock(self) -> GuestClock:
        return GuestClock(lambda: [self.process.pid])

    def close(self) -> None:
        self.kill()
        self.process.wait(10)
        self.control.close()
        os.close(self.stdout)
        os.close(self.stderr)


def python_worker(**options: object) -> BareWorker:
    return BareWorker(lambda control: [sys.executable, "-c", _BOOT, str(control), "python_session"], **options)


def shell_worker(**options: object) -> BareWorker:
    return BareWorker(lambda control: [sys.executable, "-c", _BOOT, str(control), "shell_session"], **options)


def node_worker(language: str = "javascript", **options: object) -> BareWorker:
    from warmcell.backends.process.session_worker import _start_options
    from warmcell.languages.config import ProcessConfig

    words = _start_options(language, ProcessConfig())["argv"]
    argv = [os.path.join(LIVE, "node_session.cjs") if word.endswith(".cjs") else word for word in words]
    boot = f"import os; os.dup2(%d, 3); os.execv({argv[0]!r}, {argv!r})"
    return BareWorker(lambda control: [sys.executable, "-c", boot % control], **options)


class Cells:
    """`SessionProtocol` with short words for tests."""

    def __init__(self, worker: BareWorker) -> None:
        self.worker = worker
        self.talk = SessionProtocol(worker)

    def __call__(
        self, code: str, *, timeout: float = 30, most_bytes: int = DEFAULT_OUTPUT_BYTES, **listeners: object
    ) -> CellResult:
        return self.talk.run(Run(), code, timeout, make_listeners(listeners), most_bytes)

    def variables(self) -> dict[str, str]:
        return self.talk.variables(Run(), 30)

    def close(self) -> None:
        self.talk.close()
