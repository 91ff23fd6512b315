"""The worker of a session in a live cage: how it starts in each language, and why it ended."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from typing import Any

from warmcell.backends.process.live import LiveCage
from warmcell.backends.process.started_programs import ProgramExit, StartedProgram
from warmcell.core.errors import CommandNotFound, InvalidRequest, SandboxError, SessionEnded
from warmcell.core.types import Denial, ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.descriptors import Descriptors
from warmcell.policy.places import CODE_DIR
from warmcell.sessions.agent_channel import Message
from warmcell.sessions.exchange import GRACE_SECONDS, Clock

#: The worker module by language. The worker of Node is a program of its own.
_WORKERS = {"python": "python_session", "command": "shell_session"}
LANGUAGES = ("python", "javascript", "typescript", "command")
_NODE_SESSION = f"{CODE_DIR}/live/node_session.cjs"
#: Loads a worker in another Python than the agent's.
_PYTHON_SESSION = (f"{CODE_DIR}/live/start.py", _WORKERS["python"])
#: A bash that exits in any other way is replaced by one with its state.
_EXIT_CAUSES = {"command": ": bash was replaced by 'exec', or left under 'set -e' with the EXIT trap of the same cell"}


class CagedWorker:
    """The worker of `sessions.session_protocol`. It is controlled through the cage's agent."""

    def __init__(
        self,
        program: StartedProgram,
        owned: Descriptors,
        control: socket.socket,
        out: int,
        err: int,
        image: int | None = None,
        language: str = "python",
    ) -> None:
        self._program, self._language = program, language
        self._owned = owned
        self.control, self.stdout, self.stderr, self.image = control, out, err, image
        #: Its pid in the guest.
        self.pid = program.pid
        self._peak = 0

    def interrupt(self, *, is_repeated: bool = False) -> Future[Message]:
        return self._program.signal_soon(signal.SIGINT, alone=is_repeated)

    def kill(self) -> None:
        with suppress(SandboxError):  # the cage has ended
            self._program.kill_blocking()

    def reason(self) -> str:
        try:
            return _describe_exit(self._program.ended.result(GRACE_SECONDS), self._language)
        except SessionEnded as error:
            return error.reason
        except SandboxError as error:
            return error.message
        except NoAnswer:  # it lives on without its connection, where nothing else would end it
            self.kill()
            return "it closed its connection"

    def limit_error(self, result: ExecResult) -> SandboxError | None:
        return self._program.limit_error(result) if self._program.ended.done() else None

    def end_if_over_memory(self, peak: int) -> bool:
        if peak <= self._peak:
            return False
        self._peak = peak
        return self._program.end_if_over_memory(peak)

    def denials_since(self, moment: float) -> list[Denial]:
        return self._program.denials_since(moment)

    def start_clock(self) -> Clock:
        return self._program.start_clock()

    def close(self) -> None:
        self.kill()
        self._owned.close()


def start(
    cage: LiveCage,
    language: str,
    config: ProcessConfig,
    cwd: str,
    env: Mapping[str, str] | None = None,
    *,
    is_forkable: bool = False,
    image: int | None = None,
    python: str | None = None,
) -> CagedWorker:
    """Blocks until the process exists. Its first cell waits until it is ready.

    With `is_forkable` it can write its image; `image` is a readable descriptor of the image to restore. `python` is the
    guest path of another Python than the agent's.
    """
    with Descriptors() as owned:
        control, theirs = owned.socketpair(socket.SOCK_STREAM)
        stdin, no_input = owned.pipe()
        stdout, guests_stdout = owned.pipe()
        stderr, guests_stderr = owned.pipe()
        owned.close_only(no_input)
        guests = [stdin, guests_stdout, guests_stderr, theirs]
        written = None
        if is_forkable:
            written, guests_image = owned.pipe()
            os.set_blocking(written, False)
            guests.append(guests_image)
        given = guests if image is None else [*guests, image]
        if python is not None and language == "python":
            how: dict[str, Any] = {"argv": [python, *_PYTHON_SESSION]}
        else:
            how = _start_options(language, config)
            if "argv" in how:
                how["argv"][0] = cage.template.place_of(how["argv"][0])
        program = cage.start(**how, cwd=cwd, env=env, descriptors=given)
        owned.close_only(*guests)
        if program.failure:
            owned.close()
            raise CommandNotFound(language, f"its interpreter cannot be started here: {os.strerror(program.failure)}")
        return CagedWorker(program, owned, control, stdout, stderr, written, language)


def _start_options(language: str, config: ProcessConfig) -> dict[str, Any]:
    if language in _WORKERS:
        return {"worker": _WORKERS[language]}
    if language == "javascript":
        return {"argv": [_node(config), _NODE_SESSION]}
    if language == "typescript":
        return {"argv": [_node_for_types(config), "--disable-warning=ExperimentalWarning", _NODE_SESSION, language]}
    raise InvalidRequest(f"sessions do not support {language}", field="language", hint=f"one of {', '.join(LANGUAGES)}")


def _node(config: ProcessConfig) -> str:
    from warmcell.languages.javascript import find_node, runs_javascript
    from warmcell.languages.table import REMEDIES

    need = "JavaScript sessions need Node.js 18 or newer"
    return find_node(config, runs_javascript, need, remedy=REMEDIES["javascript"]).path


def _node_for_types(config: ProcessConfig) -> str:
    from warmcell.languages.javascript import find_node, runs_typescript, transforms_types

    return find_node(
        config, runs_typescript, "TypeScript sessions need Node.js 22.18 or newer", prefer=transforms_types
    ).path


def _describe_exit(ending: ProgramExit, language: str) -> str:
    if os.WIFSIGNALED(ending.status):
        number = os.WTERMSIG(ending.status)
        name = signal.strsignal(number) or "unknown"
        hint = ", which often means that the memory limit was exceeded" if number == signal.SIGKILL else ""
        return f"its interpreter was killed by signal {number} ({name}){hint}"
    cause = _EXIT_CAUSES.get(language, "")
    return f"its interpreter exited with status {os.waitstatus_to_exitcode(ending.status)}{cause}"
