"""WorkspaceSandbox: a sandbox on a workspace, which stays when the sandbox is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warmcell.sandbox.blocking import Sandbox
from warmcell.sandbox.ports import ExposedPort


class WorkspaceSandbox(Sandbox):
    """`exposed` has, by port of the workspace, where it can be reached."""

    #: Forks of it have the values of the class: they are not the workspace.
    on_stopped: Callable[[], object] = staticmethod(lambda: None)
    exposed: Mapping[int, ExposedPort] = {}

    def destroy(self) -> None:
        """End everything in it. The workspace stays; a snapshot is taken if the store has `snapshot_on_stop`."""
        super().destroy()
        on_stopped, self.on_stopped = self.on_stopped, lambda: None
        on_stopped()


def start_sandbox(directory: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> WorkspaceSandbox:
    """With the image, environment, packages and ports of the workspace; `options` win."""
    env = dict(settings.get("env") or {}) | dict(options.get("env") or {})
    given: dict[str, Any] = {"image": settings.get("image"), "track_changes": False} | dict(options) | {"env": env}
    sandbox = WorkspaceSandbox(work_dir=directory, **given)
    try:
        if settings.get("packages"):
            sandbox.install(*settings["packages"])
        sandbox.exposed = {port: sandbox.expose(port) for port in settings.get("ports") or ()}
    except BaseException:
        sandbox.destroy()
        raise
    return sandbox
