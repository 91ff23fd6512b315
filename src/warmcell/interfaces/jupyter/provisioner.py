"""The kernel provisioner `warmcell`: kernelspecs that name it start their kernel in a live cage."""

from __future__ import annotations

import json
import os
from typing import Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxError
from warmcell.core.lines import one_line
from warmcell.interfaces.jupyter.caged_kernel import CHANNELS, CagedKernel, KernelSettings
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import SandboxPolicy

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
        if self._kernel is None:
            settings = self._settings(kwargs.get("cwd"))
            command = manager.format_kernel_cmd()
            kernel = await in_thread(lambda: CagedKernel(settings, command, self.kernel_spec.resource_dir))
            await portal.reach(kernel.open)
            self._kernel = kernel
        manager.ip = "127.0.0.1"
        for channel in CHANNELS:
            setattr(manager, channel, self._kernel.ports[channel])
        self.ports_cached = True  # already bound; Jupyter must not pick others
        try:
            return await super().pre_launch(**kwargs)
        except BaseException:
            await self._close()
            raise

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        kernel, manager = self._kernel, self.parent
        assert kernel is not None and manager is not None, "pre_launch comes first"
        environment = {name: kwargs["env"][name] for name in self.kernel_spec.env}
        try:
            await portal.reach(kernel.start, cmd, manager.connection_file, self.connection_info, environment)
        except BaseException:
            await self._close()
            raise
        self._has_process, self._is_reported = True, False
        return self.connection_info

    async def poll(self) -> int | None:
        if self._kernel is None or not self._has_process:
            return 0
        if self._kernel.is_running:
            return None
        await self._log_exit()
        code = self._kernel.exit_code
        return _KILLED if code is None else code

    async def wait(self) -> int | None:
        if self._kernel is None or not self._has_process:
            return 0
        await portal.reach(self._kernel.wait)
        code = await self.poll()
        self._has_process = False
        return code

    async def send_signal(self, signum: int) -> None:
        if self._kernel is not None:
            await portal.reach(self._kernel.signal, signum)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(15)

    async def kill(self, restart: bool = False) -> None:
        if self._kernel is not None:
            self._is_reported = True  # a requested kill needs no explanation
            await portal.reach(self._kernel.kill)

    async def shutdown_requested(self, restart: bool = False) -> None:
        self._is_reported = True

    async def cleanup(self, restart: bool = False) -> None:
        if restart and self._kernel is not None:
            await portal.reach(self._kernel.kill)  # kills its background processes too
        elif not restart:
            await self._close()

    def resolve_path(self, path_str: str) -> str | None:
        """None: paths of the cage do not exist on the host."""
        return None

    async def _close(self) -> None:
        kernel, self._kernel, self._has_process = self._kernel, None, False
        if kernel is not None:
            await portal.reach(kernel.close)

    def _settings(self, cwd: str | os.PathLike[str] | None) -> KernelSettings:
        policy = None if self.policy is None else SandboxPolicy.from_json(json.dumps(self.policy))
        work_dir = self.work_dir
        if self.beside_notebook:
            work_dir = os.path.abspath(cwd or os.getcwd())
        return KernelSettings(policy, self.memory_mb, work_dir)

    async def _log_exit(self) -> None:
        """Log why the kernel ended, once: clients learn only that it is dead."""
        if self._is_reported or self._kernel is None:
            return
        self._is_reported = True
        try:
            result = await portal.reach(self._kernel.result)
        except SandboxError as error:
            self.log.error("the caged kernel was ended: %s", one_line(str(error)))
            return
        stderr = one_line(result.stderr[-_MOST_LOGGED:]) or "no output on stderr"
        self.log.error("the caged kernel exited with status %s: %s", result.exit_code, stderr)
