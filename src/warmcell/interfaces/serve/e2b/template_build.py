"""TemplateBuild: carries out one build, in a thread: base image, E2B's account, steps, and the home of sandboxes.

E2B's build steps become the steps of an image build.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import threading
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field

from warmcell.core.errors import BuildFailed, InvalidRequest, SandboxError
from warmcell.core.records import dataclass, replace
from warmcell.core.types import MIB
from warmcell.images import Image, ImageStore
from warmcell.images.build.builder import Builder, BuildOptions
from warmcell.images.build.globs import has_wildcard
from warmcell.images.build.state import BuildState
from warmcell.images.build.steps import Copy, Env, Run, Step, User, Workdir
from warmcell.images.build.trees import Node, Tree
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.image_files import ImageFiles, find_user
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.progress import BuildProgress
from warmcell.images.prune import check_room
from warmcell.images.records import StoreParts
from warmcell.images.unpack import Unpacker
from warmcell.interfaces.serve.e2b.template_records import Uploads
from warmcell.interfaces.serve.responses import HttpError, public_message
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import USER_HOME
from warmcell.workspace.names import Parts
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.root import Quota, Root, space_for, translate_os_errors
from warmcell.workspace.walk import Descent, TreeLimits

#: A step may take this long.
STEP_SECONDS = 900.0
#: E2B's names for the phases before and after the steps.
BASE, FINALIZE = "base", "finalize"
#: Characters of all variables of a template: each of its sandboxes keeps them, and no program can be given 2 MiB.
MAX_VARIABLES = 256 << 10
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Those of the copy that a sandbox gets.
_HOME_LIMITS = ImageLimits(entries=TreeLimits().entries, name_bytes=TreeLimits().path_bytes)
#: Receives the message, the level and the step of a log entry.
Log = Callable[[str, str, str], None]
#: The user that E2B adds to every image, and its id if that is free.
USER, _USER_ID = "user", 1000


class TemplateStep(BaseModel):
    type: str
    args: Annotated[list[str], Field(max_length=1000)] = []
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
    """A step failed. The message is for the client, in E2B's words."""


def provision(files: ImageFiles) -> list[Step]:
    """Steps that add E2B's account and home, if the image lacks them, and its defaults."""
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
    """Translate one of E2B's steps. `user` is the present user. Raises `StepFailed`."""
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


class BuildCancelled(Exception):
    """The build was cancelled from another thread."""


class Cancellation:
    """Ends a build from any thread, even in the middle of a command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._end: Callable[[], object] = lambda: None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled, end = True, self._end
        end()

    def watch(self, end: Callable[[], object]) -> None:
        """Call `end` on cancellation: it ends the command that starts now."""
        with self._lock:
            self._end, is_cancelled = end, self._is_cancelled
        if is_cancelled:
            end()

    def check(self) -> None:
        if self._is_cancelled:
            raise BuildCancelled


class TemplateFailed(Exception):
    """The build failed in this step, for this reason."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step, self.message = step, message


@dataclass(frozen=True, slots=True)
class TemplateBuild:
    """One build of one tenant. Blocking."""

    store: ImageStore
    uploads: Uploads
    tenant: str
    asked: StartBuild
    policy: SandboxPolicy
    most_mb: int
    cancellation: Cancellation
    log: Log

    def run(self, base: Image, name: str, *, is_template: bool) -> Image:
        """Build the image under this name. `is_template`: the base has E2B's account. Raises `TemplateFailed`."""
        with self.store.adding() as parts:
            builder = Builder(parts, self._options(BASE))
            state = builder.start(base.digest)
            self.log(f"FROM {self.asked.fromTemplate if is_template else base.name}", "info", BASE)
            if not is_template:
                state = self._apply(builder, provision(ImageFiles(base.layer_paths)), state, BASE)
            for number, step in enumerate(self.asked.steps, 1):
                state = self._apply_step(parts, step, state, str(number))
            return self.store.add_image(builder.finish(state), name)

    def _options(self, number: str, *, is_forced: bool = False) -> BuildOptions:
        return BuildOptions(
            policy=self.policy,
            uses_cache=not (self.asked.force or is_forced),
            on_progress=lambda progress: self._report(progress, number),
            ignore_lines=(),
            on_start=self.cancellation.watch,
            step_seconds=STEP_SECONDS,
        )

    def _apply_step(self, parts: StoreParts, step: TemplateStep, state: BuildState, number: str) -> BuildState:
        layers = [parts.layers.tree(diff_id) for diff_id in state.distinct_trees]
        files = ImageFiles(layers)
        shell = files.find_program(("bash", "sh"), "/bin:/usr/bin") or "/bin/sh"
        try:
            steps = translate(step, files, state.user or "root", (shell, *(("-l",) if "bash" in shell else ()), "-c"))
        except StepFailed as error:
            raise TemplateFailed(number, str(error)) from None
        self.log(f"{step.type.upper()} {' '.join(step.args)}"[:2000], "info", number)
        options = self._options(number, is_forced=bool(step.force))
        if step.type.upper() != "COPY":
            after = self._apply(Builder(parts, options), steps, state, number, step)
            if step.type.upper() == "ENV" and sum(map(len, after.config["Env"])) > MAX_VARIABLES:
                raise TemplateFailed(number, f"the variables of the template have more than {MAX_VARIABLES} characters")
            return after
        with PrivateDirectory("work") as context:
            self._unpack(step, context.path, number)
            return self._apply(Builder(parts, replace(options, context=context.path)), steps, state, number, step)

    def _unpack(self, step: TemplateStep, context: str, number: str) -> None:
        try:
            unpack(self.uploads.path_of(self.tenant, step.filesHash or ""), context, self.most_mb)
        except HttpError as error:  # the hash is malformed
            raise TemplateFailed(number, error.message) from None
        except FileNotFoundError:
            raise TemplateFailed(number, f"no files were uploaded for the hash {step.filesHash!r}") from None
        except SandboxError as error:
            raise TemplateFailed(number, f"cannot unpack the uploaded files: {error.message}") from None

    def _apply(
        self, builder: Builder, steps: list[Step], state: BuildState, number: str, asked: TemplateStep | None = None
    ) -> BuildState:
        for step in steps:
            self.cancellation.check()
            try:
                check_room(self.store.path)
                state = builder.apply(step, state)
            except SandboxError as error:
                self.cancellation.check()
                raise TemplateFailed(number, _describe(error, asked)) from None
        return state

    def _report(self, progress: BuildProgress, number: str) -> None:
        if progress.state == "output":
            for line in progress.data.decode("utf-8", "replace").splitlines():
                self.log(line[:2000], "info", number)


def _describe(error: SandboxError, asked: TemplateStep | None) -> str:
    if isinstance(error, BuildFailed) and asked is not None and asked.type.upper() == "RUN":
        status = error.result.exit_code
        return f"failed to run command '{asked.args[0][:1000]}': command failed: exit status {status}"
    return public_message(error)


def copy_home_of(image: Image, target: str, most_mb: int, check: Callable[[], object]) -> None:
    """Copy the image's /home/user to a directory of the host; sandboxes have a copy of that mounted there.

    A hard link takes no disk in a layer, and becomes a file here, so the copy has the limits of a sandbox's own.
    `check` raises to end it.
    """
    tree, budget = Tree(image.layer_paths), Budget(_HOME_LIMITS)
    os.mkdir(target, 0o700)
    home = tree.find(USER_HOME)
    if home is None or not home.is_directory:
        return
    quota = Quota(most_mb, f"that {USER_HOME} of a sandbox may have", "write less there, or write it elsewhere")
    with Root(target, quota=quota) as root, Descent(root, create=True) as descent:
        waiting: list[tuple[Node, Parts]] = [(home, ())]
        while waiting:  # a step chooses the depth
            directory, place = waiting.pop()
            above = descent.enter(place)
            for node in tree.children(directory):
                check()
                parts = (*place, posixpath.basename(node.path))
                budget.count_entry(tuple(map(os.fsencode, parts)))
                if node.is_directory:
                    waiting.append((node, parts))
                else:
                    _copy_entry(tree, node, root, above, parts)


def _copy_entry(tree: Tree, node: Node, root: Root, above: int, parts: Parts) -> None:
    """Copy a file or a link into the open directory `above`."""
    with translate_os_errors(parts):
        if node.is_link:
            os.symlink(os.readlink(node.places[0]), parts[-1], dir_fd=above)
        elif node.is_file:
            with (
                open(tree.open(node), "rb") as source,
                root.charge(parts, space_for(node.state.st_size)),
                open(os.open(parts[-1], _CREATE, 0o600, dir_fd=above), "wb") as copy,
            ):
                os.fchmod(copy.fileno(), (node.state.st_mode & 0o777) | 0o600)
                shutil.copyfileobj(source, copy, 1 << 20)


def unpack(archive: str, directory: str, most_mb: int) -> None:
    """Unpack an uploaded archive into an empty directory. Raises `ImageInvalid`.

    It may contain anything, so it is unpacked like a layer of an image: no name and no link leads out.
    """
    budget = Budget(ImageLimits(unpacked_bytes=most_mb * MIB, entries=200_000))
    with open(archive, "rb") as stream:
        reader = LayerReader(decompress(stream), budget, os.path.getsize(archive))
        Unpacker(directory, budget).unpack(reader)
