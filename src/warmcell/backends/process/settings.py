"""Settings: where a run takes place. A cage is always the same world; the open classes get a directory of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import warmcell.guest
from warmcell.cage.plan import Bind, LaunchPlan, Watch, encode
from warmcell.cage.wire import Job
from warmcell.core.records import dataclass, replace
from warmcell.enforcers import probe
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program
from warmcell.policy.compile import compile_open_plan, compile_plan
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.places import CODE_DIR, HOME_DIR, OUT_DIR, WORK_DIR
from warmcell.policy.resolve import EffectivePolicy
from warmcell.pool.zygote import ZygoteKey

if TYPE_CHECKING:
    from warmcell.backends.process.egress import WayOut
    from warmcell.backends.process.launch import Launch

NODE_WORKER = os.path.join(warmcell.guest.__path__[0], "node_worker.cjs")

#: What each interpreter reads from its environment when it starts.
_START_VARIABLES = {"python": ("PYTHON",), "node": ("NODE", "TZ", "SSL_CERT", "OPENSSL")}

CAGED_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME_DIR, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Home:
    """Where the directories of a run are, as its program sees them."""

    work: str = WORK_DIR
    code: str = CODE_DIR
    out: str = OUT_DIR
    temporary: str = "/tmp"


@dataclass(frozen=True, slots=True)
class PlaceFor:
    """A plan that is ready to be sent, and the directories that it makes. `is_shared`: the same for every run."""

    plan: str
    home: Home
    is_shared: bool


class Setting:
    """The full cage. Subclasses are the classes that share the host's root."""

    def __init__(
        self, effective: EffectivePolicy, policy: SandboxPolicy, config: ProcessConfig, program: Program
    ) -> None:
        self.effective = effective
        self.policy = policy
        self._runtime_paths = program.runtime_paths
        self._keeps_cells = config.pool_size > 0
        self.zygote = _zygote_key(effective, config, program)
        self._plan = self._compile()
        self._place = PlaceFor(encode(self._plan), Home(), is_shared=effective.isolation == "namespaces")

    def _compile(self) -> LaunchPlan:
        return compile_plan(self.effective, probe.layout(), self._runtime_paths)

    @property
    def visible(self) -> tuple[Bind, ...]:
        """What of the host the guest sees, and where."""
        return self._plan.binds

    @property
    def has_keeper(self) -> bool:
        """Whether init has anything to do for the run: something to watch, or connections to make in its place."""
        plan = self._plan
        if plan.isolation != "namespaces" or not probe.can_shield_sleepers():
            return True
        return plan.watch != Watch() or any(bind.as_owner for bind in plan.binds)

    @property
    def concerns_init(self) -> bool:
        """Whether init must hear of the job: to begin watching, or to let one exec through."""
        return self._plan.watch != Watch() or not self._plan.allow_spawn

    def place(self, cleanup: ExitStack) -> PlaceFor:
        return self._place

    def job(self, launch: Launch, place: PlaceFor, way_out: WayOut) -> Job:
        """What the waiting cell is told."""
        program = launch.program
        env = self._env(launch, place.home, way_out.env)
        warm = self.warm_worker(launch)
        mode: str = "exec"
        argv: tuple[str, ...] = ()
        if warm == "python":
            mode = "python"
        elif warm == "node":
            argv = (os.path.basename(program.argv[-1]),)
        else:
            argv = tuple(self._argv(program, place.home))
        files = {**program.files, **way_out.files}
        return Job(mode, argv, env, place.home.code, files, program.main_file)

    def warm_worker(self, launch: Launch) -> str | None:
        """Which worker can take the text as it is. What an interpreter reads when it starts needs a new one."""
        worker = launch.program.worker
        if worker is None or launch.is_build or self.effective.isolation == "none":
            return None
        # Node reads its proxy settings when it starts, and they are only known once the way out is open.
        if worker == "node" and not (self._place.is_shared and self._keeps_cells and self.effective.network != "proxy"):
            return None
        names = {**self.effective.env, **launch.env}
        return None if any(name.startswith(_START_VARIABLES[worker]) for name in names) else worker

    def prelude(self, launch: Launch) -> Job | None:
        """For workers that are programs of their own: starts one in the cell, where it waits for the job."""
        if self.warm_worker(launch) != "node":
            return None
        argv = launch.program.argv
        switches = argv[1 : argv.index("--require")]
        with open(NODE_WORKER, "rb") as file:
            worker = file.read()
        name = "worker.cjs"
        command = (argv[0], *switches, f"{CODE_DIR}/{name}")
        return Job("prelude", command, dict(self._default_env(Home())), CODE_DIR, {name: worker})

    def _env(self, launch: Launch, home: Home, more: Mapping[str, str]) -> dict[str, str]:
        if launch.is_build:  # kept by the hash of its source, so it must not depend on who asked first
            return {**CAGED_ENV, "TMPDIR": home.temporary}
        return {**self._default_env(home), **launch.program.env, **more, **self.effective.env, **launch.env}

    def _default_env(self, home: Home) -> Mapping[str, str]:
        return CAGED_ENV

    def _argv(self, program: Program, home: Home) -> list[str]:
        return program.argv_in(home.code, home.out)


class OpenSetting(Setting):
    """Without a root of its own: a private directory on the host stands in for it, and goes with the run."""

    def _compile(self) -> LaunchPlan:
        return LaunchPlan(isolation=self.effective.isolation)

    def place(self, cleanup: ExitStack) -> PlaceFor:
        import shutil
        import tempfile

        root = tempfile.mkdtemp(prefix="warmcell-")
        cleanup.callback(shutil.rmtree, root, ignore_errors=True)
        for name in (WORK_DIR, CODE_DIR, "/tmp"):
            os.mkdir(root + name, 0o700)
        plan = compile_open_plan(self.effective, probe.layout(), self._runtime_paths, root)
        out = next((path.source for path in self.effective.paths if path.target == OUT_DIR), OUT_DIR)
        home = Home(root + WORK_DIR, root + CODE_DIR, out, root + "/tmp")
        return PlaceFor(encode(plan), home, is_shared=False)

    def _default_env(self, home: Home) -> Mapping[str, str]:
        if self.effective.isolation != "landlock":
            return {}
        return {**CAGED_ENV, "HOME": home.work, "TMPDIR": home.temporary}


class WrappedSetting(OpenSetting):
    """The command is wrapped by an enforcer that is a program of its own; what is supervised is the wrapper."""

    def job(self, launch: Launch, place: PlaceFor, way_out: WayOut) -> Job:
        from warmcell.enforcers.registry import get_enforcer

        program = launch.program
        inside = program.argv_in(CODE_DIR, OUT_DIR)
        env = {**program.env, **self.policy.env, **launch.env}
        policy = replace(self.policy, env=env, limits=launch.limits.stated(), allowed_paths=self._paths(launch, place))
        if launch.is_build:
            policy = replace(policy, allow_process_spawn=True)
        enforcer = get_enforcer(self.effective.enforced.enforcer)
        wrapped = enforcer.wrap_command(inside[0], inside[1:], policy)
        return Job("exec", tuple(wrapped.argv), dict(wrapped.env), place.home.code, dict(program.files))

    def _paths(self, launch: Launch, place: PlaceFor) -> tuple[AllowedPath, ...]:
        read_only = [AllowedPath(place.home.code, AccessMode.READ_ONLY, CODE_DIR)]
        read_only += [AllowedPath(path, AccessMode.READ_ONLY) for path in launch.program.runtime_paths]
        extra = [
            AllowedPath(path.source, AccessMode.READ_WRITE if path.writable else AccessMode.READ_ONLY, path.target)
            for path in launch.extra_paths
        ]
        merged = {path.target: path for path in (*read_only, *extra, *self.policy.allowed_paths)}
        return tuple(merged.values())


def _zygote_key(effective: EffectivePolicy, config: ProcessConfig, program: Program) -> ZygoteKey:
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
    )


def setting_for(effective: EffectivePolicy, policy: SandboxPolicy, config: ProcessConfig, program: Program) -> Setting:
    """The class that fits the enforcer."""
    if effective.isolation == "namespaces":
        return Setting(effective, policy, config, program)
    is_wrapped = effective.enforced.enforcer not in (None, "landlock")
    return (WrappedSetting if is_wrapped else OpenSetting)(effective, policy, config, program)
