"""One kernel in a live cage, with its five channels on the host's loopback. Independent of Jupyter's classes.

The kernel listens on the cage's own loopback, and `expose` forwards each channel. Unix sockets in a shared directory
would be unsafe: a guest could replace one by a link and make the client connect to any socket of the host.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxError
from warmcell.core.records import replace
from warmcell.core.types import ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.languages.toolchain import configured_program, visible_paths
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.workspace.mount_points import work_path_beside

if TYPE_CHECKING:
    from warmcell.sandbox.processes import AsyncProcess

CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
#: Below the ephemeral range: if the policy opens the network, the cage shares the host's ports.
_GUEST_PORTS = range(20_000, 32_000)
_PYTHON = re.compile(r"python[\d.]*t?")
_IS_THERE = "import importlib.util as u, sys; sys.exit(0 if u.find_spec(sys.argv[1]) else 3)"
_IS_MISSING = 3
_CHECK_SECONDS = 60
#: Writes the connection file, which has the key, outside the work directory with mode 0600.
_START = '(umask 077; cat >"$0") && exec "$@" </dev/null'


@dataclass(frozen=True)
class KernelSettings:
    """The cage's settings in a kernelspec."""

    policy: SandboxPolicy | None = None
    memory_mb: int | None = None
    work_dir: str | None = None


class CagedKernel:
    """A sandbox for the kernel's lifetime: files and ports survive restarts. Use it on one event loop."""

    def __init__(self, settings: KernelSettings, argv: Sequence[str], resource_dir: str | None = None) -> None:
        """`argv` is the kernelspec's; its program must exist on this host."""
        program = _guest_program(argv[0])
        shown = list(program.shown)
        if resource_dir and any(resource_dir in word for word in argv):
            shown.append(resource_dir)
        policy = settings.policy or SandboxPolicy(allow_process_spawn=True)
        paths = tuple(AllowedPath(path, AccessMode.READ_ONLY) for path in shown)
        self._program = program
        self._sandbox = AsyncSandbox(
            settings.work_dir,
            policy=replace(policy, allowed_paths=(*policy.allowed_paths, *paths)),
            memory_limit_mb=settings.memory_mb,
            config=program.config,
            work_path=work_path_beside(program.needed),
        )
        self._guest_ports = dict(zip(CHANNELS, random.sample(_GUEST_PORTS, len(CHANNELS)), strict=True))
        self._process: AsyncProcess | None = None
        #: Ports on the host, by their names in connection files.
        self.ports: dict[str, int] = {}

    async def open(self) -> None:
        """Make the cage and bind the ports on the host."""
        try:
            for channel, port in self._guest_ports.items():
                self.ports[channel] = (await self._sandbox.expose(port)).port
        except BaseException:
            await self.close()
            raise

    async def start(
        self, argv: Sequence[str], connection_file: str, info: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        """Start the kernel. `argv` names the host's `connection_file`; the kernel gets its own."""
        inside = f"/tmp/{os.path.basename(connection_file)}"
        content = json.dumps({**info, **self._guest_ports, "ip": "127.0.0.1", "transport": "tcp"}, default=_as_text)
        command = [self._program.path, *(word.replace(connection_file, inside) for word in argv[1:])]
        await self._check_module(command)
        self._process = await self._sandbox.spawn(["sh", "-c", _START, inside, *command], env=env)
        await self._process.write(content)
        await self._process.close_stdin()

    async def _check_module(self, command: Sequence[str]) -> None:
        """Report a missing module of `python -m module`; the kernel would exit without an explanation."""
        if not self._program.is_python or command[1:2] != ["-m"] or len(command) < 3:
            return
        check = await self._sandbox.spawn([command[0], "-c", _IS_THERE, command[2]], stdin=False)
        if (await check.wait(_CHECK_SECONDS)).exit_code == _IS_MISSING:
            raise BackendUnavailable(
                f"{self._program.path} has no module {command[2]!r}, which the kernel needs",
                hint=f"{self._program.path} -m pip install ipykernel; or 'warmcell jupyter install --python' another",
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if it is running or ended with its cage."""
        return self._process.info.exit_code if self._process is not None else None

    async def wait(self) -> None:
        """Wait for the kernel to end, for any reason."""
        with suppress(SandboxError):
            await self.result()

    async def result(self) -> ExecResult:
        """Wait for the kernel and return its result. Raises if a limit ended it."""
        if self._process is None:
            raise InvalidRequest("no kernel was started", field="kernel")
        return await self._process.wait()

    async def signal(self, number: int) -> None:
        if self._process is not None:
            await self._process.signal(number)

    async def kill(self) -> None:
        """Kill the kernel and everything that it started."""
        if self._process is not None:
            await self._process.kill()

    async def close(self) -> None:
        """Destroy the cage, its ports and its private files. Idempotent."""
        await self._sandbox.destroy()


@dataclass(frozen=True)
class _Program:
    path: str
    config: ProcessConfig
    needed: tuple[str, ...]
    shown: tuple[str, ...] = ()
    is_python: bool = False


def _guest_program(program: str) -> _Program:
    """The program and what it needs in the cage: for Python its library and packages, else its installation."""
    if _PYTHON.fullmatch(os.path.basename(program)):
        config = ProcessConfig(python_path=program)
        found = find_interpreter(config)
        return _Program(found.path, config, found.runtime_paths, is_python=True)
    path = configured_program(program, "argv")
    shown = visible_paths(path)
    return _Program(path, ProcessConfig(), (path, *shown), shown)


def _as_text(value: object) -> str:
    """Encode the key, which Jupyter keeps as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"cannot write {type(value).__name__} to a connection file")
