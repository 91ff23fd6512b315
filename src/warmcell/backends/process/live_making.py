"""Making a live cage: what its world is, who may have one, and the agent that is its guest."""

from __future__ import annotations

import marshal
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from importlib.util import MAGIC_NUMBER

import warmcell.guest
from warmcell.backends.process.egress import Egress
from warmcell.backends.process.live import LiveCage
from warmcell.backends.process.live_denials import LiveDenials
from warmcell.backends.process.world import Directories, World
from warmcell.cage.plan import LaunchPlan
from warmcell.cage.wire import Job
from warmcell.core.errors import EnforcerFailed, EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.records import dataclass, field, replace
from warmcell.core.types import ENOUGH_OPEN_FILES
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.run import Run
from warmcell.policy.places import CODE_DIR, is_within
from warmcell.policy.resolve import EffectivePolicy
from warmcell.pool.pool import CellKind, Pool
from warmcell.runner.cell import CellLost

_GUEST_FILES = os.path.join(warmcell.guest.__path__[0], "live")
_PLACE = f"{CODE_DIR}/live"
_FIRST = "start.py"
_ATTEMPTS = 3
#: Where Node is shown that cannot be shown where it lies.
_NODE_DIR = "/node"
#: The agent, a shell, and what the shell starts.
_FEWEST_PROCESSES = 3


class LiveWorld(World):
    """The same cage as any run's of Python, with terminals."""

    def __init__(self, effective: EffectivePolicy, config: ProcessConfig, shown: tuple[str, ...] = ()) -> None:
        places, self._moved = _places_of_node(effective, config)
        paths = dict.fromkeys((*_runtime_paths(config), *places, *self._moved, *shown))
        super().__init__(effective, config, Program((), {}, "", runtime_paths=tuple(paths)))

    def _compile(self) -> LaunchPlan:
        plan = super()._compile()
        return plan._replace(terminals=True, symlinks=(*plan.symlinks, ("/dev/ptmx", "pts/ptmx")))

    def _source_of(self, path: str) -> str:
        return self._moved.get(path) or super()._source_of(path)

    def place_of(self, program: str) -> str:
        moved = ((target, source) for target, source in self._moved.items() if is_within(program, source))
        return next((target + program[len(source) :] for target, source in moved), program)


def _runtime_paths(config: ProcessConfig) -> tuple[str, ...]:
    """What the agent's own interpreter needs, which is what programs find as `python3` where it was configured."""
    from warmcell.languages.python import find_interpreter

    return find_interpreter(config).runtime_paths


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
    """Who cannot have one is told what to use."""
    if effective.isolation != "namespaces":
        raise EnforcerUnavailable(
            effective.enforced.enforcer or "process",
            "it has no live cages: nothing would hold what outlives a call together",
            hint="use the native enforcer (enforcer='auto' or 'native'), or exec, sh and run without live=True",
        )
    if not effective.allow_spawn:
        raise PolicyViolation(
            "a live cage starts processes, and this policy allows none",
            hint="SandboxPolicyBuilder().allow_process_spawn()",
        )
    for name, fewest in (("processes", _FEWEST_PROCESSES), ("open_files", ENOUGH_OPEN_FILES)):
        if getattr(effective.limits, name) < fewest:
            reason = f"a live cage needs at least {fewest}"
            raise InvalidRequest(reason, field=f"limits.{name}", hint=f"raise Limits({name}=...)")


@dataclass(frozen=True, slots=True)
class LiveTerms:
    """What a caller says of its live cage: variables for all its programs, and when it ends for want of any."""

    env: Mapping[str, str] = field(default_factory=dict)
    idle_timeout: float | None = None
    #: Of the host, besides what the agent's interpreter needs.
    shown: tuple[str, ...] = ()


def begun(world: World, kind: CellKind, egress: Egress, pool: Pool, terms: LiveTerms, run: Run) -> LiveCage:
    """All that a live cage opens; nothing is left open where it fails."""
    for _ in range(_ATTEMPTS):
        try:
            return _begun_once(world, kind, egress, pool, terms, run)
        except CellLost:
            continue
    raise EnforcerFailed(kind.zygote.enforcer, "cells die before they can be used")


def _begun_once(world: World, kind: CellKind, egress: Egress, pool: Pool, terms: LiveTerms, run: Run) -> LiveCage:
    with ExitStack() as cleanup:
        owned = Descriptors()
        cleanup.callback(owned.close)
        control, theirs = owned.socketpair(socket.SOCK_STREAM)
        with ExitStack() as leasing:
            pool.begin()
            leasing.callback(pool.done)
            cell = pool.lease(replace(kind, stdin=theirs), run)
            cleanup.callback(cell.close)
            owned.close_only(theirs)
            denials = LiveDenials(tuple(bind.target for bind in world.visible))
            cell.on_denied = denials.note
            way_out = egress.open(cell, denials.add, cleanup)
            cell.start(_agent_job(way_out.files), run)
            leasing.pop_all()
            pool.stay()
            cleanup.callback(pool.leave)
        given = {**world.default_env(Directories()), **way_out.env, **world.effective.env, **terms.env}
        return LiveCage(cell, control, world, given, cleanup.pop_all(), denials, terms.idle_timeout)


def _agent_job(files_of_way_out: Mapping[str, bytes]) -> Job:
    return Job("python", (), {}, CODE_DIR, {**_agent_files(), **files_of_way_out}, f"{_PLACE}/{_FIRST}")


@cache
def _agent_files() -> Mapping[str, bytes]:
    """The agent and all that it may fork into, as files of the cell."""
    files = {}
    for name in os.listdir(_GUEST_FILES):
        if name == _FIRST or name.endswith(".cjs"):
            with open(os.path.join(_GUEST_FILES, name), "rb") as file:
                files[f"{_PLACE}/{name}"] = file.read()
    return {**files, f"{_PLACE}/modules": _modules()}


def _modules() -> bytes:
    """As `guest/live/start.py` reads them: by name, as text, and compiled, which would take longer than all the rest.

    The outer form is one that every Python reads; the code in it is for who has the same magic number.
    """
    sources, compiled = {}, {}
    for name in os.listdir(_GUEST_FILES):
        stem, suffix = os.path.splitext(name)
        if suffix == ".py" and name not in (_FIRST, "__init__.py"):
            with open(os.path.join(_GUEST_FILES, name), encoding="utf-8") as file:
                sources[stem] = file.read()
            code = compile(sources[stem], f"{_PLACE}/{name}", "exec", dont_inherit=True, optimize=0)
            compiled[stem] = marshal.dumps(code)
    return marshal.dumps((MAGIC_NUMBER, sources, compiled), 2)
