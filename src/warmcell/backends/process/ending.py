"""From a guest that has its job to the result of its run. Loaded while its cell is made."""

from __future__ import annotations

from warmcell.backends.process.job import Launch
from warmcell.backends.process.world import World
from warmcell.core.types import ExecResult
from warmcell.runner.cell import Cell
from warmcell.runner.denials import DenialCollector, explain
from warmcell.runner.outcome import KernelUsage, Terms, judge
from warmcell.runner.pump import Bounds, Pump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NOTHING_COUNTED = KernelUsage()


def result_of(
    launch: Launch, world: World, cell: Cell, denials: DenialCollector, linger: Callable[[], None]
) -> ExecResult:
    """Raises what the end of the run calls for. `linger` is told that it takes its time."""
    terms, limits = terms_of(launch, world), launch.limits
    bounds = Bounds(launch.timeout - launch.spent, limits.output_bytes, limits.cpu_seconds)
    end = Pump(cell, launch.stdin, bounds, launch.run, linger, launch.listener).run()
    cell.close()
    launch.run.check()
    kernel = cell.group_usage or _NOTHING_COUNTED
    shown = tuple(bind.target for bind in world.visible) if end.denials else ()
    for denial in explain(end, kernel, limits, shown):
        denials.add(denial)
    return judge(end, terms, kernel, denials.all())


def terms_of(launch: Launch, world: World) -> Terms:
    """What its end is judged by."""
    return Terms(
        timeout=launch.timeout,
        memory_mb=launch.limits.memory_mb,
        enforced=world.effective.enforced,
        open_files=launch.limits.open_files,
        cpu_seconds=launch.limits.cpu_seconds,
        asked=launch.run.asked + launch.spent,  # waiting for the compiler is not queueing
        phase="build" if launch.is_build else "run",
        is_wrapped=world.wrapper is not None,
    )
