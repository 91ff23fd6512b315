"""The interface between `AsyncSandbox` and the place where a sandbox runs: protocols and plain records.

A driver is one such place: `sandbox/local` for this host, `interfaces/client` for a server. Drivers get arguments that
were checked and have their defaults filled in. They raise `SandboxDestroyed` once their sandbox is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from warmcell.core.request_checks import check_whole
from warmcell.core.types import BackendCapabilities, Connection, EffectiveLimits, ExecResult
from warmcell.workspace.mount_points import WORK

if TYPE_CHECKING:
    from warmcell.backends.output_callbacks import Follow
    from warmcell.core.output_events import OutputEvent
    from warmcell.net import FetchRequest, FetchResponse
    from warmcell.sessions.cell_results import CellResult, DisplayData
    from warmcell.workspace.file_watch import FileEvent
    from warmcell.workspace.workspace import AnyPath

T = TypeVar("T")
_MAX_TERMINAL_SIDE = 65_535


@dataclass(frozen=True, slots=True)
class PtySize:
    """Columns and rows of a terminal."""

    cols: int
    rows: int

    def __post_init__(self) -> None:
        check_whole("cols", self.cols, 1, _MAX_TERMINAL_SIDE)
        check_whole("rows", self.rows, 1, _MAX_TERMINAL_SIDE)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One entry of `processes()`. `exit_code` is None while it runs, and if its cage ended first."""

    pid: int
    command: str
    cwd: str
    is_running: bool
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one command, script or program runs. The driver sets `cwd`, a directory as the guest sees it."""

    cwd: str = WORK
    stdin: str | bytes | None = None
    timeout: float = 30.0
    #: Consumes the output events of the run and returns its result; None if there are no callbacks.
    follow: Follow | None = None


@dataclass(frozen=True, slots=True)
class SpawnOptions:
    """The command of `spawn`: text for the shell, or a program with its arguments."""

    command: str | tuple[str, ...]
    cwd: AnyPath | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    pty: PtySize | None = None
    stdin: bool = True
    timeout: float | None = None
    #: The caller will follow the output at once: discard none of it before that.
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class CellCallbacks:
    """Called as a cell produces output or asks for input. One that raises ends the cell."""

    on_stdout: Callable[[str], object] | None = None
    on_stderr: Callable[[str], object] | None = None
    on_display: Callable[[DisplayData], object] | None = None
    on_input: Callable[[str], object] | None = None


NO_CALLBACKS = CellCallbacks()


class FileDriver(Protocol):
    async def call(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls this method of `Workspace` with these arguments."""
        ...

    def watch(self, path: AnyPath, recursive: bool) -> WatchDriver: ...


class RunDriver(Protocol):
    """Runs to completion. `cwd` is None or a path in the work directory."""

    async def command(self, argv: Sequence[str], cwd: AnyPath | None, options: RunOptions) -> ExecResult: ...
    async def script(self, script: str, cwd: AnyPath | None, options: RunOptions) -> ExecResult: ...
    async def code(self, code: str | bytes, language: str, options: RunOptions) -> ExecResult: ...


class LiveDriver(Protocol):
    """Processes, sessions and ports, which outlive a call."""

    async def spawn(self, options: SpawnOptions) -> ProcessDriver: ...
    async def processes(self) -> list[ProcessInfo]: ...
    async def attach(self, pid: int) -> ProcessDriver: ...
    async def open_session(self, language: str, cwd: AnyPath | None, env: Mapping[str, str]) -> SessionDriver: ...
    async def expose(self, port: int, host_port: int) -> PortDriver: ...


class SandboxDriver(Protocol):
    """One sandbox."""

    @property
    def id(self) -> str: ...
    @property
    def place(self) -> str:
        """The backend's name or the server's address, for `repr`."""
        ...

    @property
    def timeout(self) -> float: ...
    @property
    def limits(self) -> EffectiveLimits: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def files(self) -> FileDriver: ...
    @property
    def runs(self) -> RunDriver: ...
    @property
    def live(self) -> LiveDriver: ...
    @property
    def session_languages(self) -> Sequence[str]:
        """Languages in which the tools of a model keep an interpreter."""
        ...

    def check_open(self) -> None: ...
    def capabilities(self) -> BackendCapabilities: ...
    async def start(self) -> None: ...
    async def available_tools(self) -> list[str]: ...
    async def install(self, packages: Sequence[str], manager: str) -> None: ...
    async def fetch(self, request: FetchRequest | str) -> FetchResponse: ...
    async def update_network(self, update: object) -> None: ...
    async def connections(self) -> list[Connection]: ...
    async def fork(self, snapshot: str | None) -> SandboxDriver: ...
    async def close(self) -> None: ...


class ProcessDriver(Protocol):
    """One process that `spawn` started."""

    @property
    def info(self) -> ProcessInfo:
        """The last known state."""
        ...

    async def refresh(self) -> ProcessInfo: ...
    def refresh_blocking(self) -> ProcessInfo: ...
    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def resize(self, size: PtySize) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def kill(self) -> None: ...
    async def kill_quietly(self) -> None:
        """Kills it without waiting. Does nothing if it has ended."""

    async def wait(self, callbacks: asyncio.Future[None] | None = None) -> ExecResult:
        """Waits for its end and then for `callbacks`, whose error takes precedence over the process's."""
        ...

    def output(self) -> AsyncGenerator[OutputEvent]: ...
    def output_blocking(self) -> Iterator[OutputEvent]: ...


class SessionDriver(Protocol):
    """One interpreter that keeps its state between cells."""

    @property
    def id(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    async def run(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        """Calls the callbacks on this event loop and awaits what they return."""
        ...

    def run_blocking(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        """Calls the callbacks in this thread."""
        ...

    async def variables(self, timeout: float) -> dict[str, str]: ...
    def variables_blocking(self, timeout: float) -> dict[str, str]: ...
    async def interrupt(self) -> bool:
        """Interrupts the running cell, or the first that waits. Returns whether there was one."""
        ...

    async def restart(self) -> None: ...
    async def fork(self, reseed: bool) -> tuple[SandboxDriver, SessionDriver]: ...
    async def checkpoint(self) -> CheckpointDriver: ...
    async def close(self) -> None: ...


class CheckpointDriver(Protocol):
    """A session as it was at one moment."""

    @property
    def is_closed(self) -> bool: ...
    async def session(self, reseed: bool) -> tuple[SandboxDriver, SessionDriver]: ...
    async def close(self) -> None: ...


class WatchDriver(Protocol):
    async def begin(self) -> None:
        """Returns once later changes will be reported."""

    async def next(self) -> FileEvent | None:
        """The next event, or None at the end."""
        ...

    async def aclose(self) -> None: ...


class PortDriver(Protocol):
    @property
    def port(self) -> int:
        """The port on this host's loopback."""
        ...

    async def is_answered(self) -> bool:
        """Whether a program in the sandbox accepts connections on its port now."""
        ...

    async def aclose(self) -> None: ...
