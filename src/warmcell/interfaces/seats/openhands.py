"""OpenHands: `WarmcellWorkspace`, a workspace in a cage, and `caged_terminal`, a tool for agents of conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from warmcell.core.errors import ExecutionTimeout, SandboxError
from warmcell.core.types import ExecResult, Limits
from warmcell.interfaces.seats import framework
from warmcell.interfaces.seats.cage_commands import USE_BASH, CageCommands
from warmcell.lifetime.portal import portal
from warmcell.sandbox.blocking import Sandbox

with framework("openhands"):
    from openhands.sdk.git.models import GitChange, GitChangeStatus, GitDiff
    from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor, register_tool
    from openhands.sdk.workspace.base import BaseWorkspace
    from openhands.sdk.workspace.models import CommandResult, FileOperationResult
    from pydantic import Field, PrivateAttr

_KINDS = {"A": GitChangeStatus.ADDED, "D": GitChangeStatus.DELETED}
#: The exit code of a command that timed out, as in `LocalWorkspace`.
_TIMED_OUT = -1


class WarmcellWorkspace(BaseWorkspace):
    """A workspace for programs that use it directly. Conversations refuse it: most of their tools run on the host.

    `image` is the root file system (default: this host's programs), as `user`. `host_dir` is the directory of this host
    that is `/work` (default: an empty one). Files, `/tmp` and background processes stay from one command to the next.
    """

    working_dir: str = "/work"
    host_dir: str | None = None
    image: str | None = None
    user: str | None = None
    memory_mb: int = 2048
    _commands: CageCommands | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        limits = Limits(memory_mb=self.memory_mb)
        settings: dict[str, Any] = {"image": self.image, "user": self.user, "work_dir": self.host_dir}
        self._commands = CageCommands(Sandbox(live=True, limits=limits, **settings))

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        self._send_completion_callback(exc_type, exc_val)
        self.close()

    def close(self) -> None:
        """End everything in the cage. Idempotent."""
        commands, self._commands = self._commands, None
        if commands is not None:
            commands.sandbox.close()

    @property
    def _cage(self) -> CageCommands:
        if self._commands is None:
            raise RuntimeError("the workspace was closed")
        return self._commands

    def execute_command(self, command: str, cwd: str | Path | None = None, timeout: float = 30.0) -> CommandResult:
        place = self._path(cwd or ".")
        limit: ExecutionTimeout | None = None
        try:
            result = portal.call(self._cage.run, ["sh", "-c", USE_BASH, "sh", command], cwd=place, timeout=timeout)
        except ExecutionTimeout as error:
            limit, result = error, error.result or ExecResult()
        return CommandResult(
            command=command,
            exit_code=_TIMED_OUT if limit else result.exit_code,
            stdout=result.stdout,
            stderr=f"{result.stderr}{limit or ''}",
            timeout_occurred=limit is not None,
        )

    def file_upload(self, source_path: str | Path, destination_path: str | Path) -> FileOperationResult:
        def upload() -> int:
            data = Path(source_path).read_bytes()
            portal.call(self._cage.write, self._path(destination_path), data)
            return len(data)

        return _operate(upload, source_path, destination_path)

    def file_download(self, source_path: str | Path, destination_path: str | Path) -> FileOperationResult:
        def download() -> int:
            data = portal.call(self._cage.read, self._path(source_path))
            Path(destination_path).parent.mkdir(parents=True, exist_ok=True)
            return Path(destination_path).write_bytes(data)

        return _operate(download, source_path, destination_path)

    def git_changes(self, path: str | Path) -> list[GitChange]:
        """List the changes since the last commit; untracked files count as added."""
        self._git(path, "rev-parse", "--git-dir")  # `git diff` alone works outside of repositories
        listed = self._git(path, "diff", "--name-status", "--no-renames", "-z", "HEAD").split("\0")
        changes = [
            GitChange(status=_KINDS.get(kind, GitChangeStatus.UPDATED), path=Path(name))
            for kind, name in zip(listed[::2], listed[1::2], strict=False)
        ]
        unknown = self._git(path, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
        return changes + [GitChange(status=GitChangeStatus.ADDED, path=Path(name)) for name in unknown if name]

    def git_diff(self, path: str | Path) -> GitDiff:
        """The file at the last commit and now; None where it does not exist."""
        place = Path(self._path(path))
        try:
            original = self._git(place.parent, "show", f"HEAD:./{place.name}")
        except RuntimeError:
            self._git(place.parent, "rev-parse", "--git-dir")  # raises if it is not a repository
            original = None
        try:
            modified = portal.call(self._cage.read, str(place)).decode("utf-8", "replace")
        except FileNotFoundError:
            modified = None
        return GitDiff(original=original, modified=modified)

    def _git(self, path: str | Path, *words: str) -> str:
        result = portal.call(self._cage.run, ["git", "--no-pager", *words], cwd=self._path(path), timeout=60)
        if not result.ok:
            raise RuntimeError(f"git {words[0]} failed in {path}: {result.stderr.strip()[:500]}")
        return result.stdout

    def _path(self, path: str | Path) -> str:
        return str(Path(self.working_dir) / path)


def _operate(act: Callable[[], int], source: str | Path, destination: str | Path) -> FileOperationResult:
    names = {"source_path": str(source), "destination_path": str(destination)}
    try:
        return FileOperationResult(success=True, file_size=act(), **names)
    except (OSError, SandboxError) as error:
        return FileOperationResult(success=False, error=str(error), **names)


class CagedTerminalAction(Action):
    command: str = Field(description="The shell command. The working directory is the same each time.")
    timeout: float = Field(default=120.0, gt=0, description="Seconds after which the command is killed.")


class CagedTerminalObservation(Observation):
    exit_code: int


class CagedTerminalExecutor(ToolExecutor[CagedTerminalAction, CagedTerminalObservation]):
    def __init__(self, workspace: WarmcellWorkspace) -> None:
        self._workspace = workspace

    def __call__(self, action: CagedTerminalAction, conversation: Any = None) -> CagedTerminalObservation:
        result = self._workspace.execute_command(action.command, timeout=action.timeout)
        text = f"{result.stdout}{result.stderr}\n[exit status {result.exit_code}]"
        return CagedTerminalObservation.from_text(text, exit_code=result.exit_code)

    def close(self) -> None:
        self._workspace.close()


class CagedTerminalTool(ToolDefinition[CagedTerminalAction, CagedTerminalObservation]):
    """Use it as `Tool(name="caged_terminal", params={"image": ...})`. `/work` is the conversation's directory."""

    @classmethod
    def create(cls, conv_state: Any, **params: Any) -> Sequence[CagedTerminalTool]:
        workspace = WarmcellWorkspace(host_dir=str(Path(conv_state.workspace.working_dir).resolve()), **params)
        return [
            cls(
                description="Runs a shell command in a sandbox. Files are in /work.",
                action_type=CagedTerminalAction,
                observation_type=CagedTerminalObservation,
                executor=CagedTerminalExecutor(workspace),
            )
        ]


register_tool(CagedTerminalTool.name, CagedTerminalTool)
