"""ExecProcess: one program that `exec` starts in a running container."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from warmcell.interfaces.docker.container_cage import ContainerCage, make_small_ring
from warmcell.interfaces.docker.container_spec import parse_env
from warmcell.interfaces.docker.json_fields import check_size, text_field, texts_field
from warmcell.interfaces.docker.messages import DockerError
from warmcell.sandbox.interface import PtySize
from warmcell.sandbox.local.process import LocalProcess


@dataclass(frozen=True, slots=True)
class ExecSpec:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str
    has_tty: bool
    has_stdin: bool
    document: Mapping[str, Any]
    #: The memory that the document takes.
    size: int = 0


def read_exec_spec(document: Mapping[str, Any], working_dir: str, user: str) -> ExecSpec:
    """`working_dir` and `user` are the container's."""
    if document.get("Privileged"):
        raise DockerError(400, "Privileged is not supported: a container never gets privileges on the host")
    wanted = text_field(document, "User")
    if not is_same_user(wanted, user):
        reason = "all programs and files of a container belong to one user"
        raise DockerError(400, f"User {wanted[:80]!r} is not supported in this container: {reason}, here {user!r}")
    argv = texts_field(document, "Cmd")
    if not argv:
        raise DockerError(400, "No exec command specified")
    return ExecSpec(
        argv=argv,
        env={**({"TERM": "xterm"} if document.get("Tty") else {}), **parse_env(texts_field(document, "Env"))},
        working_dir=text_field(document, "WorkingDir") or working_dir,
        has_tty=bool(document.get("Tty")),
        has_stdin=bool(document.get("AttachStdin")),
        document=document,
        size=check_size(document, "the exec process"),
    )


def is_same_user(wanted: str, user: str) -> bool:
    """By name or number of the user; the group does not matter, since there is one."""
    roots = ("root", "0")
    first, second = wanted.partition(":")[0], user.partition(":")[0]
    return not first or first == second or (first in roots and second in roots)


@dataclass(slots=True)
class ExecProcess:
    spec: ExecSpec
    id: str = field(default_factory=lambda: secrets.token_hex(32))
    process: LocalProcess | None = None
    #: Set once it was asked to start, also if that failed.
    is_started: bool = False
    size: PtySize = field(default_factory=lambda: PtySize(80, 24))

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.info.is_running

    @property
    def has_ended(self) -> bool:
        return self.is_started and not self.is_running

    @property
    def exit_code(self) -> int | None:
        """None while it runs. 137 for one that ended with its container."""
        if not self.has_ended:
            return None
        if self.process is None:
            return 126
        code = self.process.info.exit_code
        return 137 if code is None else code

    async def start(self, cage: ContainerCage, *, joins_output: bool) -> LocalProcess:
        if self.is_started:
            raise DockerError(409, f"Error: Exec command {self.id[:12]} is already running or has ended")
        self.is_started, spec = True, self.spec
        pty = self.size if spec.has_tty else None
        self.process = await cage.start(
            spec.argv,
            spec.working_dir,
            env=spec.env,
            pty=pty,
            stdin=spec.has_stdin,
            ring=make_small_ring,
            joins_output=joins_output,
        )
        return self.process

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        assert self.process is not None
        async for event in self.process.output():
            yield event.stream, event.data

    def discard_output(self) -> None:
        """Lets the program print without a reader: until its output is followed once, it stays in the pipes."""
        assert self.process is not None
        with self.process.follow():
            pass
