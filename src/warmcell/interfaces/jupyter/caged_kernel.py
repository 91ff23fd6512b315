"""One kernel in a live cage, with its five channels on the host's loopback. Knows nothing of Jupyter's own classes.

The cage has a loopback of its own, where the kernel listens; `expose` carries each channel out. Sockets in a directory
that both sides see would do as well, but there a guest could put a link in a socket's place, and have its own
client connect to any socket of the host.
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
from warmcell.languages.toolchain import configured_program, shown_for
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.sandbox.asynchronous import AsyncSandbox
from warmcell.workspace.mount_points import work_path_beside

if TYPE_CHECKING:
    from warmcell.sandbox.processes import AsyncProcess

CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
#: Below those that the kernel gives to who asks for any: where the policy opens the network, the cage has the host's.
_GUEST_PORTS = range(20_000, 32_000)
_PYTHON = re.compile(r"python[\d.]*t?")
_IS_THERE = "import importlib.util as u, sys; sys.exit(0 if u.find_spec(sys.argv[1]) else 3)"
_IS_MISSING = 3
_CHECK_SECONDS = 60
#: The kernel's key is its own user's to read, and no part of the work directory.
_START = '(umask 077; cat >"$0") && exec "$@" </dev/null'


@dataclass(frozen=True)
class KernelSettings:
    """What a kernelspec says of its cage."""

    policy: SandboxPolicy | None = None
    memory_mb: int | None = None
    work_dir: str | None = None


class CagedKernel:
    """A sandbox for the kernel's whole life: restarts find its files and the same ports. Call it on one event loop."""

    def __init__(self, settings: KernelSettings, argv: Sequence[str], resource_dir: str | None = None) -> None:
        """`argv` is the kernelspec's; its program must be on this host."""
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
        #: On the host, by the names that connection files have for them.
        self.ports: dict[str, int] = {}

    async def open(self) -> None:
        """Makes the cage, and listens for clients: from now on the ports are nobody else's."""
        try:
            for channel, port in self._guest_ports.items():
                self.ports[channel] = (await self._sandbox.expose(port)).port
        except BaseException:
            await self.close()
            raise

    async def start(
        self, argv: Sequence[str], connection_file: str, info: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        """`argv` names the host's `connection_file`; the kernel gets one of its own, with the ports that it has."""
        inside = f"/tmp/{os.path.basename(connection_file)}"
        said = json.dumps({**info, **self._guest_ports, "ip": "127.0.0.1", "transport": "tcp"}, default=_as_text)
        command = [self._program.path, *(word.replace(connection_file, inside) for word in argv[1:])]
        await self._check_module(command)
        self._process = await self._sandbox.spawn(["sh", "-c", _START, inside, *command], env=env)
        await self._process.write(said)
        await self._process.close_stdin()

    async def _check_module(self, command: Sequence[str]) -> None:
        """`python -m module` without that module would end before anybody can ask it why."""
        if not self._program.is_python or command[1:2] != ["-m"] or len(command) < 3:
            return
        check = await self._sandbox.spawn([command[0], "-c", _IS_THERE, command[2]], stdin=False)
        if (await check.wait(_CHECK_SECONDS)).exit_code == _IS_MISSING:
            raise BackendUnavailable(
                f"{self._program.path} has no module {command[2]!r}, which the kernel is",
                hint=f"{self._program.path} -m pip install ipykernel; or 'warmcell jupyter install --python' another",
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def exit_code(self) -> int | None:
        """Of one that has ended; None where it went with its cage."""
        return self._process.info.exit_code if self._process is not None else None

    async def ended(self) -> None:
        """Returns when it has, however it did."""
        with suppress(SandboxError):
            await self.result()

    async def result(self) -> ExecResult:
        """What it left, when it has ended; raises what ended it, where that was a limit."""
        if self._process is None:
            raise InvalidRequest("no kernel was started", field="kernel")
        return await self._process.wait()

    async def signal(self, number: int) -> None:
        if self._process is not None:
            await self._process.signal(number)

    async def kill(self) -> None:
        """The kernel and everything that it started."""
        if self._process is not None:
            await self._process.kill()

    async def close(self) -> None:
        """Cage, ports and private files are gone. May be called twice."""
        await self._sandbox.destroy()


@dataclass(frozen=True)
class _Program:
    path: str
    config: ProcessConfig
    needed: tuple[str, ...]
    shown: tuple[str, ...] = ()
    is_python: bool = False


def _guest_program(program: str) -> _Program:
    """A Python brings its standard library and its packages into the cage, another program its installation."""
    if _PYTHON.fullmatch(os.path.basename(program)):
        config = ProcessConfig(python_path=program)
        found = find_interpreter(config)
        return _Program(found.path, config, found.runtime_paths, is_python=True)
    path = configured_program(program, "argv")
    shown = shown_for(path)
    return _Program(path, ProcessConfig(), (path, *shown), shown)


def _as_text(value: object) -> str:
    """Keys are bytes in Jupyter's own hands."""
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"a connection file has no place for {type(value).__name__}")
