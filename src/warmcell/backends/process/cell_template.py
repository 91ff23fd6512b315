"""CellTemplate: the plan and the visible host files that runs of one kind share. Cached, because most runs are alike.

Every caged run of a kind has the same template; isolation classes that share the host's root get a directory per run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from operator import is_

from warmcell.cage.environment import CAGED_ENV
from warmcell.cage.plan import Bind, LaunchPlan, encode, is_shared
from warmcell.core.light import Cleanup
from warmcell.core.records import dataclass
from warmcell.enforcers import probe
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec
from warmcell.lifetime.ownership import Lock
from warmcell.policy.compile import compile_open_plan, compile_plan
from warmcell.policy.places import CODE_DIR, COMMON_PLACES, OUT_DIR, WORK_DIR, is_within
from warmcell.policy.resolve import DEFAULT_POLICY, EffectivePolicy
from warmcell.pool.zygote import ZygoteKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack

    from warmcell.cage.plan import Sources
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.policy.model import SandboxPolicy
    from warmcell.pool.zygote import CellKind

_MOST_TEMPLATES = 32


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of a run, as its program sees them."""

    work: str = WORK_DIR
    code: str = CODE_DIR
    out: str = OUT_DIR
    temporary: str = "/tmp"


@dataclass(frozen=True, slots=True)
class PreparedTemplate:
    """An encoded plan, ready to send, and the directories that it makes."""

    plan: str
    directories: Directories
    #: Of the paths of one guest, if the plan is without them.
    sources: Sources = ()


class CellTemplate:
    """The full cage. Everything a run leaves in it is gone with it, so cells can be made ahead of time."""

    #: The same for every run.
    is_shared = True
    #: The enforcer, if it is a program around the guest; that program is then what we supervise.
    wrapper: SandboxEnforcer | None = None
    #: The caller's policy, for such an enforcer.
    policy = DEFAULT_POLICY

    def __init__(
        self, effective: EffectivePolicy, config: ProcessConfig, program: ProgramSpec, *, is_build: bool = False
    ) -> None:
        self.effective = effective
        self._runtime_paths = program.runtime_paths
        self._is_build = is_build
        self.keeps_cells = config.pool_size > 0
        self._plan = self._compile()
        self.zygote = _zygote_key(effective, config, self._plan)
        self.has_private_paths = _has_private_paths(self._plan)
        #: The kind of cells for runs in the warm interpreter.
        self.python_kind: CellKind | None = None
        self._prepared = PreparedTemplate(encode(self._plan), Directories(effective.work))

    def _compile(self) -> LaunchPlan:
        real = {path: self._source_of(path) for path in self._runtime_paths}
        return compile_plan(self.effective, probe.layout(), self._runtime_paths, real)

    def _source_of(self, path: str) -> str:
        """The host path that the guest sees at `path`."""
        return os.path.realpath(path)

    def place_of(self, program: str) -> str:
        """The guest path of a host program."""
        return program

    @property
    def visible(self) -> tuple[Bind, ...]:
        """The host paths that the guest sees."""
        return self._plan.binds

    def find_replaced(self) -> str | None:
        """The guest's path of something read-only in a writable path that the host has replaced or removed since."""
        wide = [bind.target for bind in self.visible if bind.as_owner and bind.writable and not bind.given]
        for bind in self.visible if wide else ():
            if bind.identity and not bind.writable and any(is_within(bind.target, target) for target in wide):
                try:
                    status = os.lstat(bind.source)
                except OSError:
                    return bind.target
                if bind.identity != f"{status.st_dev}:{status.st_ino}":
                    return bind.target
        return None

    @property
    def has_keeper(self) -> bool:
        """Whether a keeper process stands between the guest and the manager: only without namespaces."""
        return self._plan.isolation != "namespaces"

    def prepare(self, cleanup: ExitStack | Cleanup) -> PreparedTemplate:
        """The template of one run. What is made for that run alone is removed by `cleanup`."""
        return self._prepared

    def default_env(self, directories: Directories) -> Mapping[str, str]:
        return CAGED_ENV if self.effective.image is None else self.effective.image.env


class OpenTemplate(CellTemplate):
    """Without a root of its own: a private directory on the host takes its place."""

    is_shared = False

    def _compile(self) -> LaunchPlan:
        return LaunchPlan(isolation=self.effective.isolation)

    def prepare(self, cleanup: ExitStack | Cleanup) -> PreparedTemplate:
        from warmcell.lifetime.own_modes import make_directory
        from warmcell.workspace.private_directory import PrivateDirectory

        private = PrivateDirectory("run")
        cleanup.callback(private.close)
        root = private.path
        for name in (WORK_DIR, CODE_DIR, "/tmp"):
            make_directory(root + name)
        plan = compile_open_plan(self.effective, probe.layout(), self._runtime_paths, root)
        shown = {path.target: path.source for path in self.effective.paths}
        work, out = shown.get(self.effective.work, root + WORK_DIR), shown.get(OUT_DIR, OUT_DIR)
        directories = Directories(work, root + CODE_DIR, out, root + "/tmp")
        return PreparedTemplate(encode(plan), directories)

    def default_env(self, directories: Directories) -> Mapping[str, str]:
        if self._is_build:  # its artefact is shared, so it must not depend on the caller that asked first
            return {**CAGED_ENV, "TMPDIR": directories.temporary}
        if self.effective.isolation != "landlock":
            return {}
        return {**CAGED_ENV, "HOME": directories.work, "TMPDIR": directories.temporary}


def make_template(
    effective: EffectivePolicy,
    config: ProcessConfig,
    program: ProgramSpec,
    policy: SandboxPolicy,
    enforcer: SandboxEnforcer | None,
    *,
    is_build: bool,
) -> CellTemplate:
    """Our own enforcers are built by the cage itself; any other is a wrapper and reads the policy."""
    if effective.isolation == "namespaces":
        return CellTemplate(effective, config, program, is_build=is_build)
    template = OpenTemplate(effective, config, program, is_build=is_build)
    if effective.isolation == "none":
        template.wrapper, template.policy = enforcer, policy
    return template


class TemplateCache:
    """The most recently used templates. Safe from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._templates: dict[tuple[object, ...], CellTemplate] = {}
        #: The one that was found last, which is nearly always the one that is looked for.
        self._latest: tuple[tuple[object, ...], CellTemplate] | None = None

    def find(self, key: tuple[object, ...]) -> CellTemplate | None:
        latest = self._latest
        if latest is not None and all(map(is_, key, latest[0])):
            return latest[1]
        with self._lock:
            template = self._templates.pop(key, None)
            if template is not None:
                self._templates[key] = template
                self._latest = (key, template)
            return template

    def keep(self, key: tuple[object, ...], template: CellTemplate) -> CellTemplate:
        with self._lock:
            self._templates[key] = template
            while len(self._templates) > _MOST_TEMPLATES:
                del self._templates[next(iter(self._templates))]
        return template


def _zygote_key(effective: EffectivePolicy, config: ProcessConfig, plan: LaunchPlan) -> ZygoteKey:
    """One zygote of the configured interpreter serves every language, so there is rarely more than one."""
    from warmcell.languages.python import find_interpreter

    interpreter = find_interpreter(config)
    is_open = effective.isolation == "none"
    return ZygoteKey(
        interpreter=interpreter.path,
        isolation=effective.isolation,
        enforcer=effective.enforced.enforcer or "process",
        has_worker=not is_open,
        with_site=interpreter.has_site and not is_open,
        preload=() if is_open else tuple(config.preload),
        keeps_spares=config.pool_size > 0,
        has_host_network=plan.network == "host" and effective.isolation == "namespaces",
        library_path="" if effective.gpu is None else ":".join(effective.gpu.library_dirs),
    )


def _has_private_paths(plan: LaunchPlan) -> bool:
    """Whether the plan contains path names of the caller's own. Common places reveal nothing to other guests."""
    own = {bind.target for bind in plan.binds if not is_shared(bind, plan) and not _is_own_toolchain(bind)}
    return not {plan.cwd, *own} <= COMMON_PLACES


def _is_own_toolchain(bind: Bind) -> bool:
    """A toolchain of the host program's own environment, which all of its backends share."""
    is_named = bind.as_owner or bind.writable
    return not is_named and any(is_within(bind.source, prefix) for prefix in (sys.prefix, sys.base_prefix))
