"""The kernel provisioner `warmcell`: kernelspecs that name it start their kernel in a live cage.

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
from warmcell.core.light import on_error
from warmcell.core.lines import one_line
from warmcell.core.records import replace
from warmcell.core.types import ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter
from warmcell.languages.toolchain import configured_program, visible_paths
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
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
#: Writes the connection file (which contains the key) outside the work directory, with mode 0600.
_START = '(umask 077; cat >"$0") && exec "$@" </dev/null'


class CagedKernel:
    """A sandbox for the kernel's lifetime: files and ports survive restarts. Use it on one event loop."""

    def __init__(
        self, argv: Sequence[str], resource_dir: str | None, policy: SandboxPolicy | None, **settings: Any
    ) -> None:
        """`argv` is the kernelspec's, and its program must exist on this host. The rest are settings of the cage."""
        program = _guest_program(argv[0])
        shown = list(program.shown)
        if resource_dir and any(resource_dir in word for word in argv):
            shown.append(resource_dir)
        policy = policy or SandboxPolicy(allow_process_spawn=True)
        paths = tuple(AllowedPath(path, AccessMode.READ_ONLY) for path in shown)
        self._program = program
        self._sandbox = AsyncSandbox(
            policy=replace(policy, allowed_paths=(*policy.allowed_paths, *paths)),
            config=program.config,
            work_path=work_path_beside(program.needed),
            **settings,
        )
        self._guest_ports = dict(zip(CHANNELS, random.sample(_GUEST_PORTS, len(CHANNELS)), strict=True))
        self.process: AsyncProcess | None = None
        #: Ports on the host, by their names in connection files.
        self.ports: dict[str, int] = {}

    async def open(self) -> None:
        """Make the cage and bind the ports on the host."""
        async with on_error(self.close):
            for channel, port in self._guest_ports.items():
                self.ports[channel] = (await self._sandbox.expose(port)).port

    async def start(
        self, argv: Sequence[str], connection_file: str, info: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        """Start the kernel. `argv` names the host's `connection_file`; the kernel gets its own."""
        inside = f"/tmp/{os.path.basename(connection_file)}"
        content = json.dumps({**info, **self._guest_ports, "ip": "127.0.0.1", "transport": "tcp"}, default=_decode_key)
        command = [self._program.path, *(word.replace(connection_file, inside) for word in argv[1:])]
        await self._check_module(command)
        self.process = await self._sandbox.spawn(["sh", "-c", _START, inside, *command], env=env)
        await self.process.write(content)
        await self.process.close_stdin()

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

    async def wait(self) -> None:
        """Wait for the kernel to end, for any reason."""
        with suppress(SandboxError):
            await self.result()

    async def result(self) -> ExecResult:
        """Wait for the kernel and return its result. Raises if a limit ended it."""
        if self.process is None:
            raise InvalidRequest("no kernel was started", field="kernel")
        return await self.process.wait()

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


def _decode_key(value: object) -> str:
    """Decode the key for JSON: Jupyter keeps it as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"cannot write {type(value).__name__} to a connection file")


try:
    from jupyter_client.provisioning.local_provisioner import LocalProvisioner
    from traitlets import Bool, Dict, Integer, Unicode
except ImportError as error:
    raise BackendUnavailable(
        f"the kernel provisioner needs the package {error.name!r}", hint="pip install 'warmcell[jupyter]'"
    ) from error

_KILLED = -9
_MOST_LOGGED = 2000


class WarmcellProvisioner(LocalProvisioner):
    """Jupyter's local provisioner with a cage instead of a child process. Key, connection file and encryption are as
    in the base class. The kernel's environment has only the variables that its kernelspec names.
    """

    policy = Dict(default_value=None, allow_none=True, help="what code may do, as SandboxPolicy.to_json() has it")
    memory_mb = Integer(default_value=None, allow_none=True, help="memory of all that runs in the cage")
    work_dir = Unicode(default_value=None, allow_none=True, help="a directory of the host to work in")
    beside_notebook = Bool(False, help="work in the notebook's own directory")

    def __init__(self, **kwargs: Any) -> None:
        if unknown := set(kwargs) - {"parent", "config", "log"} - set(self.trait_names()):
            # Jupyter would ignore them, and one may be a misspelt restriction.
            raise InvalidRequest(f"the kernelspec has unknown settings: {', '.join(sorted(unknown))}")
        super().__init__(**kwargs)
        self._kernel: CagedKernel | None = None
        self._has_process = False
        self._is_reported = False

    @property
    def has_process(self) -> bool:
        return self._has_process

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        manager: Any = self.parent
        if manager.transport != "tcp":
            raise InvalidRequest("kernels in a cage support only tcp", field="transport")
        async with on_error(self._close):
            kernel = self._kernel
            if kernel is None:
                settings = self._settings(kwargs.get("cwd"))
                command = manager.format_kernel_cmd()
                kernel = self._kernel = await in_thread(
                    lambda: CagedKernel(command, self.kernel_spec.resource_dir, **settings),
                    discard=lambda made: portal.call(made.close),
                )
                await portal.call_async(kernel.open)
            manager.ip = "127.0.0.1"
            for channel in CHANNELS:
                setattr(manager, channel, kernel.ports[channel])
            self.ports_cached = True  # already bound; Jupyter must not pick others
            return await super().pre_launch(**kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        kernel, manager = self._kernel, self.parent
        assert kernel is not None and manager is not None, "call pre_launch first"
        environment = {name: kwargs["env"][name] for name in self.kernel_spec.env}
        async with on_error(self._close):
            await portal.call_async(kernel.start, cmd, manager.connection_file, self.connection_info, environment)
        self._has_process, self._is_reported = True, False
        return self.connection_info

    @property
    def _kernel_process(self) -> AsyncProcess | None:
        return None if self._kernel is None else self._kernel.process

    async def poll(self) -> int | None:
        process = self._kernel_process
        if process is None or not self._has_process:
            return 0
        if process.is_running:
            return None
        await self._log_exit()
        code = process.info.exit_code  # None: it ended with its cage
        return _KILLED if code is None else code

    async def wait(self) -> int | None:
        if self._kernel is None or not self._has_process:
            return 0
        await portal.call_async(self._kernel.wait)
        code = await self.poll()
        self._has_process = False
        return code

    async def send_signal(self, signum: int) -> None:
        if self._kernel_process is not None:
            await portal.call_async(self._kernel_process.signal, signum)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(15)

    async def kill(self, restart: bool = False) -> None:
        if self._kernel_process is not None:
            self._is_reported = True  # a requested kill needs no explanation
            await portal.call_async(self._kernel_process.kill)

    async def shutdown_requested(self, restart: bool = False) -> None:
        self._is_reported = True

    async def cleanup(self, restart: bool = False) -> None:
        if restart and self._kernel_process is not None:
            await portal.call_async(self._kernel_process.kill)  # kills its background processes too
        elif not restart:
            await self._close()

    def resolve_path(self, path_str: str) -> str | None:
        """Return None: paths of the cage do not exist on the host."""
        return None

    async def _close(self) -> None:
        kernel, self._kernel, self._has_process = self._kernel, None, False
        if kernel is not None:
            await portal.call_async(kernel.close)

    def _settings(self, cwd: str | os.PathLike[str] | None) -> dict[str, Any]:
        policy = None if self.policy is None else SandboxPolicy.from_json(json.dumps(self.policy))
        work_dir = self.work_dir
        if self.beside_notebook:
            work_dir = os.path.abspath(cwd or os.getcwd())
        return {"policy": policy, "memory_limit_mb": self.memory_mb, "work_dir": work_dir}

    async def _log_exit(self) -> None:
        """Log why the kernel ended, once: clients learn only that it is dead."""
        if self._is_reported or self._kernel is None:
            return
        self._is_reported = True
        try:
            result = await portal.call_async(self._kernel.result)
        except SandboxError as error:
            self.log.error("the caged kernel was ended: %s", one_line(str(error)))
            return
        stderr = one_line(result.stderr[-_MOST_LOGGED:]) or "no output on stderr"
        self.log.error("the caged kernel exited with status %s: %s", result.exit_code, stderr)
