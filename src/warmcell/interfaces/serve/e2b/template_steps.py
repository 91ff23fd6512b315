"""E2B's build steps as the steps of an image build. Pure, but for looking at the image's files."""

from __future__ import annotations

import posixpath
from typing import Annotated, Any

from pydantic import BaseModel, Field

from warmcell.core.errors import InvalidRequest
from warmcell.images.build.globs import has_wildcard
from warmcell.images.build.steps import Copy, Env, Run, Step, User, Workdir
from warmcell.images.image_files import ImageFiles
from warmcell.images.image_users import find_user
from warmcell.policy.places import USER_HOME

#: The user that E2B adds to every image, and its id if that is free.
USER, _USER_ID = "user", 1000
_COPY = Annotated[list[str], Field(max_length=1000)]


class TemplateStep(BaseModel):
    type: str
    args: _COPY = []
    filesHash: str | None = None  # noqa: N815
    force: bool | None = False


class StartBuild(BaseModel):
    """What starts a build. Registry credentials are accepted and not used: nothing is pulled."""

    fromImage: str | None = None  # noqa: N815
    fromTemplate: str | None = None  # noqa: N815
    fromImageRegistry: dict[str, Any] | None = None  # noqa: N815
    force: bool | None = False
    steps: Annotated[list[TemplateStep], Field(max_length=1000)] = []
    startCmd: Annotated[str, Field(max_length=65_536)] | None = None  # noqa: N815
    readyCmd: Annotated[str, Field(max_length=65_536)] | None = None  # noqa: N815


class StepFailed(Exception):
    """The message for the client, as E2B words it."""


def provision(files: ImageFiles) -> list[Step]:
    """E2B's own account and home, where the image lacks them; then its defaults."""
    steps: list[Step] = []
    accounts, groups = files.read_lines("/etc/passwd"), files.read_lines("/etc/group")
    if not any(line.startswith(f"{USER}:") for line in accounts):
        taken = {line.split(":")[2] for line in [*accounts, *groups] if line.count(":") >= 3}
        number = next(number for number in range(_USER_ID, 1 << 16) if str(number) not in taken)
        passwd = [*accounts, f"{USER}:x:{number}:{number}::{USER_HOME}:/bin/bash"]
        group = [line for line in groups if not line.startswith(f"{USER}:")] + [f"{USER}:x:{number}:"]
        inline = {"passwd": _lines(passwd), "group": _lines(group)}
        steps.append(Copy((), "/etc/", inline=inline, text=f"ADD USER {USER}"))
    return [*steps, User(USER), Workdir(USER_HOME)]


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def translate(step: TemplateStep, files: ImageFiles, user: str, shell: tuple[str, ...]) -> list[Step]:
    """The steps that one of E2B's stands for. `user` is the present one. Raises `StepFailed`."""
    kind, args = step.type.upper(), step.args
    if kind == "RUN" and 1 <= len(args) <= 2:
        return _run(args[0], args[1] if len(args) == 2 and args[1] else user, files, user, shell)
    if kind == "COPY" and 2 <= len(args) <= 4:
        return [_copy(*args)]
    if kind == "ENV" and args and len(args) % 2 == 0:
        return [Env(dict(zip(args[::2], args[1::2], strict=True)))]
    if kind == "WORKDIR" and len(args) == 1:
        return [Workdir(args[0])]
    if kind == "USER" and len(args) == 1:
        return [User(_check_user(args[0], files, f"set user '{args[0]}'"))]
    raise StepFailed(f"unsupported step: {step.type[:40]} with {len(args)} arguments")


def _run(command: str, as_user: str, files: ImageFiles, user: str, shell: tuple[str, ...]) -> list[Step]:
    _check_user(as_user, files, f"run command '{command}'")
    run = Run((*shell, command), text=f"RUN {command}")
    return [run] if as_user == user else [User(as_user), run, User(user)]


def _check_user(name: str, files: ImageFiles, what: str) -> str:
    try:
        find_user(files, name)
    except InvalidRequest:
        raise StepFailed(f"failed to {what}: command failed: unauthenticated: invalid username: '{name}'") from None
    return name


def _copy(source: str, destination: str, user: str = "", mode: str = "") -> Step:
    """An archive has only what its step copies, so that `directory/*` is the directory; links in it are kept."""
    parent, last = posixpath.split(source.rstrip("/"))
    if has_wildcard(last) and not has_wildcard(parent):
        source, destination = parent or ".", destination.rstrip("/") + "/"
    try:
        bits = int(mode, 8) & 0o7777 if mode else None
    except ValueError:
        raise StepFailed(f"'{mode[:20]}' is not a mode") from None
    return Copy((source,), destination, chown=user, chmod=bits, text=f"COPY {source} {destination}")
