"""mini-swe-agent: `environment_class: warmcell.interfaces.seats.mini_swe_agent.WarmcellEnvironment`."""

from __future__ import annotations

import platform
from shlex import quote
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.seats import framework
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

with framework("mini-swe-agent"):
    from minisweagent.exceptions import Submitted
    from minisweagent.utils.serialize import recursive_merge
    from pydantic import BaseModel

_END = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class WarmcellEnvironmentConfig(BaseModel):
    """`image` is the root file system (default: this host's programs) and `user` the user in it. `work_dir` is a host
    directory to work in (default: a private one). `cwd` is where commands start.
    """

    cwd: str = ""
    env: dict[str, str] = {}
    timeout: int = 30
    image: str | None = None
    user: str | None = None
    work_dir: str | None = None
    memory_mb: int = 2048


class WarmcellEnvironment:
    """One live sandbox: files, `/tmp` and background processes stay from one command to the next."""

    def __init__(self, *, config_class: type = WarmcellEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        config = self.config
        self._sandbox = Sandbox(
            config.work_dir,
            live=True,
            env=config.env,
            image=config.image,
            user=config.user,
            memory_limit_mb=config.memory_mb,
        )

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the command with bash, else with sh. Raises `Submitted` if it ends the task."""
        script = _script(action.get("command", ""), cwd or self.config.cwd)
        try:
            result = self._sandbox.sh(script, timeout=timeout or self.config.timeout)
            output = {"output": result.stdout, "returncode": result.exit_code, "exception_info": ""}
        except SandboxError as error:
            output = _failure(error)
        _check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs)

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        self._sandbox.close()

    def __del__(self) -> None:
        if hasattr(self, "_sandbox"):
            portal.post(self._sandbox._async.destroy)  # the garbage collector may run on the portal's own thread


def _script(command: str, cwd: str) -> str:
    start = f"cd {quote(cwd)} || exit\n" if cwd else ""
    return (
        f"exec 2>&1\n{start}"
        f"if command -v bash >/dev/null; then exec bash -c {quote(command)}; fi\nexec sh -c {quote(command)}\n"
    )


def _failure(error: SandboxError) -> dict[str, Any]:
    """The answer for a command that a limit ended: what it printed, and which limit."""
    result = getattr(error, "result", None)
    return {
        "output": "" if result is None else result.stdout,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _check_finished(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == _END and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
