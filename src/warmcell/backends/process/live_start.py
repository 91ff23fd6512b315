"""Starts a live cage: its template, the checks of the policy, and the agent that is its guest."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from functools import cache

import warmcell.guest
from warmcell.backends.process.cell_template import CellTemplate, Directories
from warmcell.backends.process.egress import Egress
from warmcell.backends.process.guest_job import pack_modules
from warmcell.backends.process.live import LiveCage
from warmcell.backends.process.started_programs import LiveDenials
from warmcell.cage.environment import CAGED_ENV
from warmcell.cage.plan import LaunchPlan, encode, take_sources
from warmcell.cage.wire import GuestJob
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.light import on_error
from warmcell.core.records import dataclass, field, replace
from warmcell.core.types import ENOUGH_OPEN_FILES
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.run import Run
from warmcell.policy.compile import replace_sources
from warmcell.policy.places import CODE_DIR, is_within
from warmcell.policy.resolve import EffectivePolicy
from warmcell.pool.pool import CELLS_HINT, Pool
from warmcell.pool.zygote import CellKind
from warmcell.runner.cell import CellLost

_GUEST_FILES = os.path.join(warmcell.guest.__path__[0], "live")
_PLACE = f"{CODE_DIR}/live"
_MODULES = f"{_PLACE}/modules"
_FIRST = "start.py"
#: In its place where the zygote has loaded the agent: unpacking all modules takes as long as the cage.
_SHORT_START = b"import sys\ndel sys.path[0]\nfrom warmcell_live import agent\nagent.main()()\n"
_ATTEMPTS = 3
#: The guest path of Node if its host path is covered.
_NODE_DIR = "/node"
#: What the agent and the worker of shell sessions import of the standard library. In an image they could not: the files
#: there are another Python's.
MODULES_OF_AGENT = (
    *("array", "ctypes", "errno", "fcntl", "functools", "importlib", "json", "os", "select", "shutil"),
    *("socket", "struct", "sys", "termios", "time", "_signal", "encodings.ascii", "encodings.latin_1", "traceback"),
    *("resource", "shlex", "signal", "subprocess", "threading", "_thread"),
    *("stat", "tarfile"),  # of the Docker door's requests
)
#: The fewest processes: the agent, a shell, and what the shell starts.
_FEWEST_PROCESSES = 3


class LiveTemplate(CellTemplate):
    """The cage of a Python run, with terminals."""

    def __init__(self, effective: EffectivePolicy, config: ProcessConfig, shown: tuple[str, ...] = ()) -> None:
        from warmcell.languages.python import find_interpreter

        places, self._moved = _places_of_node(effective, config)
        # The agent's interpreter is also the guests' `python3` if it is configured.
        own = find_interpreter(config).runtime_paths
        paths = dict.fromkeys((*own, *places, *self._moved, *shown))
        super().__init__(effective, config, ProgramSpec((), {}, "", runtime_paths=tuple(paths)))
        if effective.image is not None:
            self.zygote = replace(self.zygote, preload=(*self.zygote.preload, *MODULES_OF_AGENT))

        plan, sources = take_sources(self._plan)
        self._prepared = replace(self._prepared, plan=encode(plan), sources=sources)

    def _compile(self) -> LaunchPlan:
        plan = super()._compile()
        return plan._replace(terminals=True, symlinks=(*plan.symlinks, ("/dev/ptmx", "pts/ptmx")))

    def for_policy(self, effective: EffectivePolicy) -> LiveTemplate | None:
        """This template for a policy that differs in the sources of its paths alone; None for any other.

        Also None if something of the host that it shows has been removed since.
        """
        plan = replace_sources(self._plan, self.effective, effective)
        if plan is None or not all(os.path.lexists(bind.source) for bind in plan.binds if not bind.as_owner):
            return None
        template = copy(self)
        template.effective, template._plan = effective, plan
        template._prepared = replace(self._prepared, sources=take_sources(plan)[1])
        return template

    def _source_of(self, path: str) -> str:
        return self._moved.get(path) or super()._source_of(path)

    def place_of(self, program: str) -> str:
        moved = ((target, source) for target, source in self._moved.items() if is_within(program, source))
        return next((target + program[len(source) :] for target, source in moved), program)


def _places_of_node(effective: EffectivePolicy, config: ProcessConfig) -> tuple[list[str], dict[str, str]]:
    """For sessions in JavaScript, where Node lies elsewhere than in /usr. What something else covers (`/work` is the
    guest's own, and may be where the host has Node) is shown at another place, which is given with what it is there.
    """
    from warmcell.languages.javascript import places_of_node

    covers = [path.target for path in effective.paths if path.source != path.target]
    places = places_of_node(config)
    covered = [place for place in places if any(is_within(place, target) for target in covers)]
    is_free = not any(is_within(_NODE_DIR, path.target) for path in effective.paths)
    moved = {f"{_NODE_DIR}/{number}": os.path.realpath(place) for number, place in enumerate(covered) if is_free}
    return [place for place in places if place not in covered], moved


def check(effective: EffectivePolicy) -> None:
    """Refuses policies that cannot have a live cage, with the remedy."""
    if effective.isolation != "namespaces":
        raise EnforcerUnavailable(
            effective.enforced.enforcer or "process",
            "it has no live cages: programs cannot outlive a call",
            hint="use the native enforcer (enforcer='auto' or 'native'), or exec, sh and run without live=True",
        )
    if not effective.allow_spawn:
        raise PolicyViolation(
            "a live cage starts processes, and this policy allows none",
            hint="SandboxPolicyBuilder().allow_process_spawn(), or allowProcessSpawn in the policy's file",
        )
    for name, fewest in (("processes", _FEWEST_PROCESSES), ("open_files", ENOUGH_OPEN_FILES)):
        if getattr(effective.limits, name) < fewest:
            reason = f"a live cage needs at least {fewest}"
            raise InvalidRequest(reason, field=f"limits.{name}", hint=f"raise Limits({name}=...)")


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options from the caller: variables for all programs, and the idle timeout."""

    env: Mapping[str, str] = field(default_factory=dict)
    idle_timeout: float | None = None
    #: Host paths besides those of the agent's interpreter.
    shown: tuple[str, ...] = ()


def create_live_cage(
    template: CellTemplate, kind: CellKind, egress: Egress, pool: Pool, options: LiveOptions, run: Run
) -> LiveCage:
    """Makes a live cage. If that fails, everything is closed."""
    for _ in range(_ATTEMPTS):
        try:
            return _create_once(template, kind, egress, pool, options, run)
        except CellLost:
            continue
    raise EnforcerFailed(kind.zygote.enforcer, "each cell exited before it could be used", hint=CELLS_HINT)


def _create_once(
    template: CellTemplate, kind: CellKind, egress: Egress, pool: Pool, options: LiveOptions, run: Run
) -> LiveCage:
    with ExitStack() as cleanup:
        owned = Descriptors()
        cleanup.callback(owned.close)
        control, theirs = owned.socketpair(socket.SOCK_STREAM)
        with ExitStack() as leasing:
            pool.begin_lease()
            leasing.callback(pool.end_lease)
            cell = pool.lease(replace(kind, stdin=theirs), run)
            cleanup.callback(cell.close)
            owned.close_only(theirs)
            denials = LiveDenials(tuple(bind.target for bind in template.visible))
            cell.on_denied = denials.note
            egress_handle = egress.open(cell, denials.add, cleanup)
            # The Python of an image loads modules itself.
            has_modules = cell.has_live_modules and template.effective.image is None
            cell.send_job(_agent_job(egress_handle.files, has_modules), run)
            leasing.pop_all()
            pool.pin()
            cleanup.callback(pool.unpin)
        given = {**template.default_env(Directories()), **egress_handle.env, **template.effective.env, **options.env}
        made = cleanup.pop_all()
        with on_error(made.close):  # its loop needs a descriptor and a thread
            return LiveCage(cell, control, template, given, made, denials, options.idle_timeout)


def _agent_job(files_of_way_out: Mapping[str, bytes], has_modules: bool) -> GuestJob:
    """With the zygote's own environment, so that nothing has to be changed: no program gets the agent's."""
    files = {**_agent_files(), **files_of_way_out}
    if has_modules:
        del files[_MODULES]
        files[f"{_PLACE}/{_FIRST}"] = _SHORT_START
    return GuestJob("python", (), CAGED_ENV, CODE_DIR, files, f"{_PLACE}/{_FIRST}")


@cache
def _agent_files() -> Mapping[str, bytes]:
    """The agent and its workers, as files of the cell."""
    files = {}
    for name in os.listdir(_GUEST_FILES):
        if name == _FIRST or name.endswith(".cjs"):
            with open(os.path.join(_GUEST_FILES, name), "rb") as file:
                files[f"{_PLACE}/{name}"] = file.read()
    names = [name.removesuffix(".py") for name in os.listdir(_GUEST_FILES) if name.endswith(".py")]
    own = [name for name in names if name not in ("start", "__init__")]
    return {**files, _MODULES: pack_modules(_GUEST_FILES, own, lambda name: f"{_PLACE}/{name}.py")}
