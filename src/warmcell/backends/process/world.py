"""World: where runs of one kind take place, and what of the host they see. Remembered, since most runs are alike.

A cage is always the same world; the classes that share the host's root get a directory of their own for every run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from operator import is_

from warmcell.cage.environment import CAGED_ENV
from warmcell.cage.plan import Bind, LaunchPlan, encode, is_shared
from warmcell.core.records import dataclass
from warmcell.enforcers import probe
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program
from warmcell.lifetime.cleanup import Cleanup
from warmcell.lifetime.ownership import Lock
from warmcell.policy.compile import compile_open_plan, compile_plan
from warmcell.policy.places import CODE_DIR, COMMON_PLACES, OUT_DIR, WORK_DIR, is_within
from warmcell.policy.resolve import EffectivePolicy
from warmcell.pool.zygote import ZygoteKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack

    from warmcell.core.contracts import SandboxEnforcer
    from warmcell.pool.pool import CellKind

_MOST_WORLDS = 32


@dataclass(frozen=True, slots=True)
class Directories:
    """Where the directories of a run are, as its program sees them."""

    work: str = WORK_DIR
    code: str = CODE_DIR
    out: str = OUT_DIR
    temporary: str = "/tmp"


@dataclass(frozen=True, slots=True)
class PreparedWorld:
    """A plan that is ready to be sent, and the directories that it makes."""

    plan: str
    directories: Directories


class World:
    """The full cage: whatever a run leaves in there is gone with it, so it can be made ahead of time."""

    #: The same for every run.
    is_shared = True
    #: The enforcer that is a program of its own around the guest; what is supervised is then that program.
    wrapper: SandboxEnforcer | None = None

    def __init__(self, effective: EffectivePolicy, config: ProcessConfig, program: Program) -> None:
        self.effective = effective
        self._runtime_paths = program.runtime_paths
        self.keeps_cells = config.pool_size > 0
        self._plan = self._compile()
        self.zygote = _zygote_key(effective, config, self._plan)
        #: Of cells for runs in its warm interpreter: whoever leases one knows.
        self.python_kind: CellKind | None = None
        self._prepared = PreparedWorld(encode(self._plan), Directories(effective.work))

    def _compile(self) -> LaunchPlan:
        real = {path: self._source_of(path) for path in self._runtime_paths}
        return compile_plan(self.effective, probe.layout(), self._runtime_paths, real)

    def _source_of(self, path: str) -> str:
        """What of the host is shown there."""
        return os.path.realpath(path)

    def place_of(self, program: str) -> str:
        """Where its guests find a program of the host."""
        return program

    @property
    def visible(self) -> tuple[Bind, ...]:
        """What of the host the guest sees, and where."""
        return self._plan.binds

    @property
    def has_keeper(self) -> bool:
        """Whether a process stands between the guest and who looks after all: where there are no namespaces."""
        return self._plan.isolation != "namespaces"

    def prepare(self, cleanup: ExitStack | Cleanup) -> PreparedWorld:
        """The world of one run; what was made for that run alone goes with `cleanup`."""
        return self._prepared

    def default_env(self, directories: Directories) -> Mapping[str, str]:
        return CAGED_ENV


class OpenWorld(World):
    """Without a root of its own: a private directory on the host stands in for it."""

    is_shared = False

    def __init__(
        self, effective: EffectivePolicy, config: ProcessConfig, program: Program, wrapper: SandboxEnforcer | None
    ) -> None:
        super().__init__(effective, config, program)
        self.wrapper = wrapper

    def _compile(self) -> LaunchPlan:
        return LaunchPlan(isolation=self.effective.isolation)

    def prepare(self, cleanup: ExitStack | Cleanup) -> PreparedWorld:
        from warmcell.workspace.private_directory import PrivateDirectory

        private = PrivateDirectory("run")
        cleanup.callback(private.close)
        root = private.path
        for name in (WORK_DIR, CODE_DIR, "/tmp"):
            os.mkdir(root + name, 0o700)
        plan = compile_open_plan(self.effective, probe.layout(), self._runtime_paths, root)
        shown = {path.target: path.source for path in self.effective.paths}
        work, out = shown.get(self.effective.work, root + WORK_DIR), shown.get(OUT_DIR, OUT_DIR)
        directories = Directories(work, root + CODE_DIR, out, root + "/tmp")
        return PreparedWorld(encode(plan), directories)

    def default_env(self, directories: Directories) -> Mapping[str, str]:
        if self.effective.isolation != "landlock":
            return {}
        return {**CAGED_ENV, "HOME": directories.work, "TMPDIR": directories.temporary}


class RememberedWorlds:
    """By what they depend on; of many, those that were used last. Safe from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._worlds: dict[tuple[object, ...], World] = {}
        #: The one that was found last, which is nearly always the one that is asked for.
        self._latest: tuple[tuple[object, ...], World] | None = None

    def find(self, key: tuple[object, ...]) -> World | None:
        latest = self._latest
        if latest is not None and all(map(is_, key, latest[0])):
            return latest[1]
        with self._lock:
            world = self._worlds.pop(key, None)
            if world is not None:
                self._worlds[key] = world
                self._latest = (key, world)
            return world

    def keep(self, key: tuple[object, ...], world: World) -> None:
        with self._lock:
            self._worlds[key] = world
            while len(self._worlds) > _MOST_WORLDS:
                del self._worlds[next(iter(self._worlds))]


def world_for(
    effective: EffectivePolicy, config: ProcessConfig, program: Program, enforcer: SandboxEnforcer | None
) -> World:
    """The class that fits the enforcer: ours are built by the cage itself, any other is a wrapper."""
    if effective.isolation == "namespaces":
        return World(effective, config, program)
    return OpenWorld(effective, config, program, enforcer if effective.isolation == "none" else None)


def _zygote_key(effective: EffectivePolicy, config: ProcessConfig, plan: LaunchPlan) -> ZygoteKey:
    """One zygote of the configured interpreter serves every language, so that there is rarely more than one."""
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
        names_places=_names_places(plan),
    )


def _names_places(plan: LaunchPlan) -> bool:
    """Whether a zygote is told a name of the caller's. Places that are the same for everybody tell nobody anything."""
    own = {bind.target for bind in plan.binds if not is_shared(bind, plan) and not _is_of_the_program(bind)}
    return not {plan.cwd, *own} <= COMMON_PLACES


def _is_of_the_program(bind: Bind) -> bool:
    """A toolchain of the program's own environment, which all of its backends have."""
    is_named = bind.as_owner or bind.writable
    return not is_named and any(is_within(bind.source, prefix) for prefix in (sys.prefix, sys.base_prefix))
