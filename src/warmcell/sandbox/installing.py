"""`sandbox.install`: which manager, whether it can be now, and what the sandbox does with what was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest, SessionBusy
from warmcell.languages.config import ProcessConfig
from warmcell.sandbox.packages import Installer, checked_requirements

if TYPE_CHECKING:
    from warmcell.sandbox.asynchronous import AsyncSandbox

_MANAGERS = ("pip", "npm")


def checked_manager(manager: object) -> str:
    if manager not in _MANAGERS:
        raise InvalidRequest(f"must be one of {', '.join(_MANAGERS)}", field="manager")
    return str(manager)


async def install(sandbox: AsyncSandbox, manager: str, packages: Sequence[str]) -> None:
    """`SessionBusy` while something runs that would not see them."""
    if manager == "npm":
        from warmcell.sandbox.npm_packages import checked_names, install_npm

        checked_names(packages)
    else:
        checked_requirements(packages)
    if sandbox._backend_name != "process":
        raise InvalidRequest("is for the process backend", field="packages", hint="use Sandbox(backend='process')")
    if sandbox._live is not None and sandbox._live.is_in_use:
        raise SessionBusy("what runs in the live cage would not see the packages; install before spawn and session")
    installer, before = _installer(sandbox), sandbox._packages
    work = install_npm(installer, packages, before) if manager == "npm" else installer.install(packages, before)
    await sandbox._use_packages(await sandbox._operations.run(work))


def _installer(sandbox: AsyncSandbox) -> Installer:
    settings = sandbox._settings
    config = getattr(settings["backend"], "config", settings["config"])
    enforcer = getattr(settings["backend"], "enforcer", settings["enforcer"])
    return Installer(config or ProcessConfig(), enforcer, sandbox.limits.disk_mb)
